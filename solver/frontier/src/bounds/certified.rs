//! Frontiers with a proven gap, where exact ones explode.
//!
//! 1. Weighted optima over the whole space, obtained by bisecting slopes (Aneja and Nair 1979),
//!    give points and supporting lines.
//! 2. The choices that the optima use form a restricted problem; its frontier is tracked with
//!    coarse staircases and fills the gaps between the optima.
//! 3. Comparing points with lines gives the certificate; where it is too large, the optimum at that
//!    slope and choices close to it are added, and step 2 repeats.

use crate::bounds::certificate::{certify, corner_gap, Line};
use crate::bounds::restricted::KeptChoices;
use crate::bounds::scalar;
use crate::model::error::SolveError;
use crate::model::point::Point;
use crate::model::problem::Problem;
use crate::model::watch::Watch;
use crate::model::weights::Weights;
use crate::tracking::gather::Limits;
use crate::tracking::grid::Resolution;
use crate::tracking::repeated::{self, Fineness};

/// Rounds of restricted tracking.
const ROUNDS: usize = 6;
/// The most weighted optima before the first round.
const MOST_OPTIMA: usize = 28;
/// A round that leaves more than this share of the gap has not helped.
const PROGRESS: f64 = 0.95;
/// After this many rounds in a row that did not help, the remaining gap lies between the lines,
/// where no line can prove more.
const PATIENCE: usize = 2;
/// Choices added to each kind of operator in every other round; the number doubles each time.
const NEAR: usize = 4;
/// The most lines added after a round.
const MOST_LIFTS: usize = 24;
/// Staircases in the first round have at most this many steps; each round doubles it.
const STEPS: usize = 96;
/// A slope this close to an axis still breaks ties by the other cost.
const TIE: f64 = 1e-7;

/// Points and what is proven about them.
pub struct Certified {
    pub points: Vec<Point>,
    pub lines: Vec<Line>,
    pub epsilon: f64,
    /// With a memory target: a lower bound on the time of any strategy within it (seconds).
    pub time_lower_bound: Option<f64>,
    pub optima: usize,
    pub kept_choices: f64,
    /// Why the search stopped early, if it did.
    pub stopped: Option<SolveError>,
}

/// A search: its points, lines and kept choices so far.
struct Search<'p, 'w> {
    problem: &'p Problem,
    watch: &'w Watch<'w>,
    points: Vec<Point>,
    lines: Vec<Line>,
    kept: KeptChoices,
    /// Scales of memory and time.
    scale: (f64, f64),
}

/// Tracks the frontier to within `epsilon`, or only its neighbourhood of `target` bytes.
///
/// # Errors
///
/// Returns an error when the solve must stop before both ends of the frontier are known. Once they
/// are, an early stop is recorded in [`Certified::stopped`].
pub fn solve(
    problem: &Problem,
    epsilon: f64,
    target: Option<f64>,
    watch: &Watch,
) -> Result<Certified, SolveError> {
    let mut search = Search::start(problem, watch)?;
    let stopped = match target {
        None => search.whole(epsilon),
        Some(target) => search.near(target, epsilon),
    }
    .err();
    let time_lower_bound = target.and_then(|t| search.bound_at(t));
    let (epsilon, _) = certify(&search.points, &search.lines);
    Ok(Certified {
        epsilon,
        time_lower_bound,
        optima: search.lines.len(),
        kept_choices: search.kept.mean(),
        points: search.points,
        lines: search.lines,
        stopped,
    })
}

impl<'p, 'w> Search<'p, 'w> {
    /// Finds the two ends of the frontier.
    fn start(problem: &'p Problem, watch: &'w Watch<'w>) -> Result<Self, SolveError> {
        let mut search = Self {
            kept: KeptChoices::new(problem),
            problem,
            watch,
            points: Vec::new(),
            lines: Vec::new(),
            scale: (1.0, 1.0),
        };
        let smallest = search.pure(1.0, 0.0)?;
        let fastest = search.pure(0.0, 1.0)?;
        let above_zero = |x: f64| if x > 0.0 { x } else { 1.0 };
        search.scale = (above_zero(fastest.memory), above_zero(smallest.time));
        search.minimise(search.relative(1.0, TIE))?;
        search.minimise(search.relative(TIE, 1.0))?;
        Ok(search)
    }

    /// Minimises one cost alone. The strategy may be far from the frontier, so its choices are not
    /// kept.
    fn pure(&mut self, memory: f64, time: f64) -> Result<Point, SolveError> {
        self.bound(Weights { memory, time }).map(|(_, point)| point)
    }

    /// Minimises under these weights; keeps the line, the point and its choices.
    fn minimise(&mut self, weights: Weights) -> Result<(f64, Point), SolveError> {
        let (value, point) = self.bound(weights)?;
        self.kept.add(&point);
        Ok((value, point))
    }

    /// Minimises under these weights; keeps the line and the point.
    fn bound(&mut self, weights: Weights) -> Result<(f64, Point), SolveError> {
        let (value, point) = scalar::minimise(self.problem, weights, scalar::EFFORT, self.watch)?;
        self.lines.push(Line { weights, value });
        self.insert(point.clone());
        Ok((value, point))
    }

    /// Returns weights relative to the scales.
    fn relative(&self, memory: f64, time: f64) -> Weights {
        Weights {
            memory: memory / self.scale.0,
            time: time / self.scale.1,
        }
    }

    /// Returns the weights under which two points cost the same.
    fn slope(&self, p: &Point, q: &Point) -> Weights {
        let memory = (p.time - q.time) / self.scale.1;
        let time = (q.memory - p.memory) / self.scale.0;
        self.relative(memory / (memory + time), time / (memory + time))
    }

    /// Returns the optimum at the slope between two points, and whether it lies below their line.
    fn between(&mut self, p: &Point, q: &Point) -> Result<(bool, Point), SolveError> {
        let weights = self.slope(p, q);
        let line = weights.of(p.memory, p.time);
        let (value, point) = self.minimise(weights)?;
        Ok((value < line * (1.0 - 1e-9), point))
    }

    /// Inserts a point unless another one beats it, and removes the points that it beats.
    fn insert(&mut self, point: Point) {
        let beats = |a: &Point, b: &Point| a.memory <= b.memory && a.time <= b.time;
        if self.points.iter().any(|p| beats(p, &point)) {
            return;
        }
        self.points.retain(|p| !beats(&point, p));
        let at = self.points.partition_point(|p| p.memory < point.memory);
        self.points.insert(at, point);
    }

    /// Tracks the whole frontier until the gap is at most `epsilon` or further rounds do not help.
    fn whole(&mut self, epsilon: f64) -> Result<(), SolveError> {
        self.supported_points(epsilon)?;
        let (mut last, mut stalled) = (f64::INFINITY, 0);
        for round in 0..ROUNDS {
            self.watch
                .poll("restricted", round as f64 / ROUNDS as f64)?;
            self.track_kept(f64::INFINITY, epsilon, STEPS << round)?;
            let (gap, corner) = self.lift_lines(epsilon)?;
            stalled = if gap > last * PROGRESS {
                stalled + 1
            } else {
                0
            };
            last = gap;
            if gap <= epsilon || stalled == PATIENCE {
                return Ok(());
            }
            // Finer staircases often suffice. More choices cost more: they are added every other
            // round.
            let near = if round % 2 == 1 {
                NEAR << (round / 2)
            } else {
                0
            };
            self.sharpen(corner, near)?;
        }
        Ok(())
    }

    /// Adds lines at the slopes of the worst corners while that helps; returns the gap and its
    /// corner.
    ///
    /// No line is better for a corner than the one at its own slope, and a line is cheap compared
    /// to another round of tracking.
    fn lift_lines(&mut self, epsilon: f64) -> Result<(f64, usize), SolveError> {
        let (mut gap, mut corner) = certify(&self.points, &self.lines);
        for _ in 0..MOST_LIFTS {
            if gap <= epsilon || corner == 0 || corner == self.points.len() {
                break;
            }
            let (p, q) = (self.points[corner - 1].clone(), self.points[corner].clone());
            let before = corner_gap(&self.lines, q.memory, p.time);
            self.between(&p, &q)?;
            if corner_gap(&self.lines, q.memory, p.time) > before * 0.99 {
                break;
            }
            (gap, corner) = certify(&self.points, &self.lines);
        }
        Ok((gap, corner))
    }

    /// Bisects slopes, the worst corner first, until the optima alone suffice or are too many.
    fn supported_points(&mut self, epsilon: f64) -> Result<(), SolveError> {
        let mut hull = self.points.clone();
        let mut closed: Vec<(f64, f64)> = Vec::new();
        for done in 0..MOST_OPTIMA {
            self.watch
                .poll("bounding", done as f64 / MOST_OPTIMA as f64)?;
            let open = hull
                .windows(2)
                .filter(|w| !closed.contains(&(w[0].memory, w[1].memory)))
                .map(|w| {
                    let gap = corner_gap(&self.lines, w[1].memory, w[0].time);
                    (gap, w[0].clone(), w[1].clone())
                })
                .max_by(|a, b| a.0.total_cmp(&b.0));
            let Some((gap, p, q)) = open else { break };
            if gap <= epsilon / 4.0 {
                break;
            }
            match self.between(&p, &q)? {
                (true, point) if point.memory > p.memory && point.memory < q.memory => {
                    let at = hull.partition_point(|x| x.memory < point.memory);
                    hull.insert(at, point);
                }
                _ => closed.push((p.memory, q.memory)),
            }
        }
        Ok(())
    }

    /// Keeps the choices of the optimum at a corner's slope, and up to `near` choices close to them
    /// per kind of operator.
    fn sharpen(&mut self, corner: usize, near: usize) -> Result<(), SolveError> {
        let last = self.points.len() - 1;
        let (p, q) = (
            self.points[corner.saturating_sub(1).min(last)].clone(),
            self.points[corner.min(last)].clone(),
        );
        let weights = if q.memory > p.memory {
            self.slope(&p, &q)
        } else if corner == 0 {
            self.relative(1.0, 1e-3)
        } else {
            self.relative(1e-3, 1.0)
        };
        let (_, point) = self.minimise(weights)?;
        self.kept
            .add_near(self.problem, &point, weights, near, self.watch)?;
        Ok(())
    }

    /// Tracks the frontier of the kept choices and adds its points.
    fn track_kept(&mut self, cap: f64, epsilon: f64, steps: usize) -> Result<(), SolveError> {
        let selection = self.kept.selection();
        let least_time = self.points.last().map_or(0.0, |p| p.time);
        let least_memory = self.points.first().map_or(0.0, |p| p.memory);
        let share = epsilon * 2.0 / (self.problem.operators.len() as f64).max(8.0);
        let resolution = Resolution {
            slots: steps,
            memory_bytes: least_memory * share,
            time_s: least_time * share,
            memory_cap: cap,
        };
        let limits = Limits {
            candidates: u64::MAX,
            watch: self.watch,
        };
        let fineness = Fineness::Coarse(resolution);
        for point in repeated::track(self.problem, &selection, fineness, &limits)? {
            self.insert(point);
        }
        Ok(())
    }

    /// Searches only around `target` bytes: the fastest strategy within it and a bound on its time.
    fn near(&mut self, target: f64, epsilon: f64) -> Result<(), SolveError> {
        let Some((mut p, mut q)) = self.straddling(target) else {
            return Ok(());
        };
        for done in 0..MOST_OPTIMA {
            self.watch
                .poll("bounding", done as f64 / MOST_OPTIMA as f64)?;
            let (below, point) = self.between(&p, &q)?;
            if !below || self.proven(target, epsilon) {
                break;
            }
            if point.memory <= target {
                p = point;
            } else {
                q = point;
            }
        }
        for round in 0..ROUNDS {
            if self.proven(target, epsilon) {
                return Ok(());
            }
            self.track_kept(target, epsilon, STEPS << round)?;
            if self.proven(target, epsilon) {
                return Ok(());
            }
            let corner = self.points.partition_point(|x| x.memory <= target);
            self.sharpen(corner, 2 << round)?;
        }
        Ok(())
    }

    /// Returns the fastest point within the target and the smallest beyond it, if both exist.
    fn straddling(&self, target: f64) -> Option<(Point, Point)> {
        let at = self.points.partition_point(|x| x.memory <= target);
        let inside = at.checked_sub(1)?;
        Some((self.points[inside].clone(), self.points.get(at)?.clone()))
    }

    /// Returns whether the fastest point within the target is within `epsilon` of its bound.
    fn proven(&self, target: f64, epsilon: f64) -> bool {
        let at = self.points.partition_point(|x| x.memory <= target);
        match (at.checked_sub(1), self.bound_at(target)) {
            (Some(best), Some(bound)) => self.points[best].time <= bound * (1.0 + epsilon),
            _ => true, // nothing fits, as the smallest strategy shows
        }
    }

    /// Returns the best bound on the time within the target; `None` when nothing fits.
    fn bound_at(&self, target: f64) -> Option<f64> {
        self.points.first().filter(|p| p.memory <= target)?;
        let best = self.lines.iter().map(|line| line.time_at(target));
        Some(best.fold(0.0, f64::max))
    }
}
