//! In which order operators are eliminated, and which of the tables on the way are alike.
//!
//! Eliminating an operator replaces it and all factors that touch it by one factor over its
//! neighbours' choices (bucket elimination, Dechter 1999; TensorOpt's node, edge and branch
//! elimination, Eq. 4 to 7, are its cases with one and two neighbours). The least work goes first.
//! Among equal work the operator whose surroundings have been eliminated least deeply goes first:
//! on a chain of repeated layers every second boundary goes, then every second of what is left.
//! Factors made alike are one class and computed once, so that n equal layers take log n classes.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::error::SolveError;
use crate::problem::Problem;
use crate::selection::Selection;
use crate::watch::Watch;

/// More work than this is not told apart.
const HOPELESS: f64 = 1e30;

/// A table over some operators' selected choices; equal classes have equal contents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Class {
    /// An edge's alternatives.
    Edge(EdgeClass),
    /// Factors joined, and the operator that is eliminated, if one is. `places` of a factor says where each of its axes goes: `None` is the eliminated operator,
    /// else an axis of the result.
    Step {
        eliminated: Option<Eliminated>,
        factors: Vec<(usize, Vec<Option<usize>>)>,
    },
}

/// An edge between two sets of choices.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EdgeClass {
    pub table: usize,
    rows: usize,
    columns: usize,
    source_set: usize,
    target_set: usize,
}

/// An operator as its class sees it: its choices, and its costs unless another copy has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Eliminated {
    pub costs: Option<usize>,
    pub set: usize,
}

/// Where a concrete factor comes from.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    Edge(usize),
    Step(usize),
}

/// A class used for concrete operators.
#[derive(Debug, Clone)]
pub struct Factor {
    pub class: usize,
    pub scope: Vec<usize>,
    pub origin: Origin,
}

/// `operator` is eliminated, or only its factors are joined where it is `None`.
#[derive(Debug)]
pub struct Step {
    pub operator: Option<usize>,
    pub factors: Vec<Factor>,
    pub result: Factor,
}

/// What one elimination and all together may come to.
#[derive(Debug, Clone, Copy)]
pub struct Width {
    /// Cells times choices of one elimination.
    pub step_work: f64,
    pub table_cells: f64,
    pub all_cells: f64,
    /// Join factors until a step has at most two.
    pub pairs: bool,
    /// Where an elimination is too wide, eliminate copies of the operator (mini-buckets, Dechter
    /// and Rish 2003): every bound is a lower bound then. Otherwise that is an error.
    pub relax: bool,
}

pub struct Schedule<'a> {
    pub problem: &'a Problem,
    pub selection: &'a Selection,
    /// With the extent of each axis; a class comes after the classes it is made of.
    pub classes: Vec<(Class, Vec<usize>)>,
    pub steps: Vec<Step>,
    /// Whether an operator was copied.
    pub relaxed: bool,
    known: HashMap<Class, usize>,
    cells: f64,
    width: Width,
}

impl<'a> Schedule<'a> {
    /// Find the order. Errs with `OverBudget` when the graph is too wide for `width`.
    pub fn new(
        problem: &'a Problem,
        selection: &'a Selection,
        width: Width,
        watch: &Watch,
    ) -> Result<Self, SolveError> {
        let mut schedule = Self {
            problem,
            selection,
            classes: Vec::new(),
            steps: Vec::new(),
            relaxed: false,
            known: HashMap::new(),
            cells: 0.0,
            width,
        };
        schedule.width.all_cells = watch.room(width.all_cells, size_of::<f64>());
        let mut left = schedule.edge_factors();
        schedule.drop_determined(&mut left);
        let mut depth = vec![0u32; problem.operators.len()];
        // Work is positive, so that its bits are in its order.
        let key = |work: f64, depth: u32, o: usize| (work.to_bits(), depth, o);
        let open = (0..problem.operators.len()).filter(|o| schedule.choices(*o) > 1);
        let mut work: HashMap<usize, f64> = open.map(|o| (o, schedule.work(o, &left))).collect();
        let mut queue: BTreeSet<(u64, u32, usize)> =
            work.iter().map(|(o, w)| key(*w, 0, *o)).collect();
        while let Some((_, _, operator)) = queue.pop_first() {
            watch.poll("ordering", 0.5)?;
            let fits = schedule.check_width(operator, work[&operator], &left);
            let mut factors = left.take(operator);
            let buckets = match fits {
                Ok(()) => {
                    while width.pairs && factors.len() > 2 {
                        schedule.join_smallest(&mut factors);
                    }
                    vec![factors]
                }
                Err(_) if width.relax => schedule.buckets(operator, factors),
                Err(too_wide) => return Err(too_wide),
            };
            schedule.relaxed |= buckets.len() > 1;
            for (copy, factors) in buckets.into_iter().enumerate() {
                let scope = scope(Some(operator), &factors);
                let result = schedule.record(Some(operator), copy == 0, factors, scope);
                left.add(&result);
                for &o in &result.scope {
                    queue.remove(&key(work[&o], depth[o], o));
                    depth[o] = depth[o].max(depth[operator] + 1);
                    work.insert(o, schedule.work(o, &left));
                    queue.insert(key(work[&o], depth[o], o));
                }
            }
        }
        if width.pairs {
            schedule.join_components();
        }
        Ok(schedule)
    }

    /// The results that are a single cell: one per component of the graph.
    pub fn roots(&self) -> impl Iterator<Item = &Factor> + '_ {
        let all = self.steps.iter().map(|step| &step.result);
        all.filter(|result| result.scope.is_empty())
    }

    /// The cells of an edge's table for every pair of selected choices, row-major.
    pub fn edge_cells(&self, edge: &EdgeClass) -> Vec<usize> {
        let width = self.problem.tables[edge.table].columns;
        let at = |map: usize, set: usize| -> Vec<usize> {
            let map = &self.problem.maps[map];
            let set = self.selection.sets[set].iter();
            set.map(|k| map[*k as usize] as usize).collect()
        };
        let columns = at(edge.columns, edge.target_set);
        let rows = at(edge.rows, edge.source_set);
        rows.iter()
            .flat_map(|row| columns.iter().map(move |column| row * width + column))
            .collect()
    }

    /// Cells times choices of all classes together.
    pub fn total_work(&self) -> f64 {
        let choices = |class: &Class| match class {
            Class::Step {
                eliminated: Some(eliminated),
                ..
            } => self.selection.sets[eliminated.set].len(),
            _ => 1,
        };
        let cells = |dims: &[usize]| dims.iter().map(|d| *d as f64).product::<f64>();
        self.classes
            .iter()
            .map(|(class, dims)| cells(dims) * choices(class) as f64)
            .sum()
    }

    /// Components have a single cell each; join them, so that the last step is the whole.
    fn join_components(&mut self) {
        let mut roots: VecDeque<Factor> = self.roots().cloned().collect();
        // Equal components stand side by side, and so do their halves, quarters, ...
        roots.make_contiguous().sort_by_key(|root| root.class);
        while roots.len() > 1 {
            let pair = roots.drain(..2).collect();
            let joined = self.step(None, pair);
            roots.push_back(joined);
        }
    }

    fn edge_factors(&mut self) -> Left {
        let mut left = Left::new(self.problem.operators.len());
        for (e, edge) in self.problem.edges.iter().enumerate() {
            let scope = vec![edge.source, edge.target];
            let class = Class::Edge(EdgeClass {
                table: edge.table,
                rows: edge.rows,
                columns: edge.columns,
                source_set: self.selection.of[edge.source],
                target_set: self.selection.of[edge.target],
            });
            left.add(&Factor {
                class: self.intern(class, &scope),
                scope,
                origin: Origin::Edge(e),
            });
        }
        left
    }

    /// An operator with one choice joins nothing: every factor loses its axis on its own.
    fn drop_determined(&mut self, left: &mut Left) {
        for operator in 0..self.problem.operators.len() {
            if self.choices(operator) > 1 {
                continue;
            }
            self.step(Some(operator), Vec::new());
            for factor in left.take(operator) {
                let narrower = self.narrower(operator, factor);
                left.add(&narrower);
            }
        }
    }

    fn choices(&self, operator: usize) -> usize {
        self.selection.choices(operator).len()
    }

    fn cells_of(&self, scope: &[usize]) -> f64 {
        scope
            .iter()
            .map(|o| self.choices(*o) as f64)
            .product::<f64>()
    }

    /// Replace the two factors with the smallest joint table by that table.
    fn join_smallest(&mut self, factors: &mut Vec<Factor>) {
        let mut best = (f64::INFINITY, 0, 1);
        for i in 0..factors.len() {
            for j in i + 1..factors.len() {
                let mut scope = factors[i].scope.clone();
                scope.extend(&factors[j].scope);
                scope.sort_unstable();
                scope.dedup();
                let cells = self.cells_of(&scope);
                if cells < best.0 {
                    best = (cells, i, j);
                }
            }
        }
        let second = factors.remove(best.2);
        let first = factors.remove(best.1);
        let joined = self.step(None, vec![first, second]);
        factors.push(joined);
    }

    /// A factor without the axis of an operator that has one choice.
    fn narrower(&mut self, operator: usize, factor: Factor) -> Factor {
        let scope = scope(Some(operator), std::slice::from_ref(&factor));
        self.record(None, true, vec![factor], scope)
    }

    /// Eliminate an operator, or only join factors; the result takes the place of the factors.
    fn step(&mut self, operator: Option<usize>, factors: Vec<Factor>) -> Factor {
        let scope = scope(operator, &factors);
        self.record(operator, true, factors, scope)
    }

    fn record(
        &mut self,
        operator: Option<usize>,
        with_costs: bool,
        factors: Vec<Factor>,
        mut scope: Vec<usize>,
    ) -> Factor {
        // The widest axis last: the innermost loop runs along it.
        scope.sort_by_key(|o| (self.choices(*o), *o));
        let places = factors
            .iter()
            .map(|f| {
                let axes = f.scope.iter().map(|o| scope.iter().position(|s| s == o));
                (f.class, axes.collect())
            })
            .collect();
        let class = Class::Step {
            eliminated: operator.map(|o| Eliminated {
                costs: with_costs.then_some(self.problem.operators[o].costs),
                set: self.selection.of[o],
            }),
            factors: places,
        };
        let result = Factor {
            class: self.intern(class, &scope),
            scope,
            origin: Origin::Step(self.steps.len()),
        };
        self.steps.push(Step {
            operator,
            factors,
            result: result.clone(),
        });
        result
    }

    fn intern(&mut self, class: Class, scope: &[usize]) -> usize {
        if let Some(&id) = self.known.get(&class) {
            return id;
        }
        let dims: Vec<usize> = scope.iter().map(|o| self.choices(*o)).collect();
        self.cells += dims.iter().map(|d| *d as f64).product::<f64>();
        self.classes.push((class.clone(), dims));
        self.known.insert(class, self.classes.len() - 1);
        self.classes.len() - 1
    }

    /// Cells times choices of an elimination; infinite where nobody would want to know.
    fn work(&self, operator: usize, left: &Left) -> f64 {
        let mut work = self.choices(operator) as f64;
        for o in &left.neighbours[operator] {
            work *= self.choices(*o) as f64;
            if work > HOPELESS {
                return f64::INFINITY;
            }
        }
        work
    }

    /// Factors in as few groups as are narrow enough, the widest first.
    fn buckets(&self, operator: usize, mut factors: Vec<Factor>) -> Vec<Vec<Factor>> {
        factors.sort_by_key(|f| std::cmp::Reverse(f.scope.len()));
        // What several copies leave behind must fit together with what is there.
        let room = (self.width.all_cells - self.cells).max(0.0) / 2.0;
        let most = self.width.table_cells.min(room / factors.len() as f64);
        let mut buckets: Vec<Vec<Factor>> = Vec::new();
        for factor in factors {
            let fitting = buckets.iter().position(|bucket| {
                let mut both = bucket.clone();
                both.push(factor.clone());
                let cells = self.cells_of(&scope(Some(operator), &both));
                cells <= most && cells * self.choices(operator) as f64 <= self.width.step_work
            });
            match fitting {
                Some(at) => buckets[at].push(factor),
                None => buckets.push(vec![factor]),
            }
        }
        buckets
    }

    fn check_width(&self, operator: usize, work: f64, left: &Left) -> Result<(), SolveError> {
        let cells = work / self.choices(operator) as f64;
        let width = &self.width;
        if work > width.step_work
            || cells > width.table_cells
            || self.cells + cells > width.all_cells
        {
            return Err(SolveError::OverBudget(format!(
                "operator {:?} is joined too widely to be eliminated exactly ({} neighbours left, a table of {cells:.1e} cells)",
                self.problem.operators[operator].name,
                left.neighbours[operator].len(),
            )));
        }
        Ok(())
    }
}

/// Where a step's result finds the cells of a factor.
pub struct Strides {
    /// Of each axis of the result; 0 where the factor does not depend on it.
    axes: Vec<usize>,
    /// Of the eliminated operator.
    pub along: usize,
}

impl Strides {
    /// `dims` and `places` are the factor's, `axes` is the number of axes of the result.
    pub fn new(dims: &[usize], places: &[Option<usize>], axes: usize) -> Self {
        let mut strides = Self {
            axes: vec![0; axes],
            along: 0,
        };
        let mut stride = 1;
        for (place, dim) in places.iter().zip(dims).rev() {
            match place {
                Some(axis) => strides.axes[*axis] = stride,
                None => strides.along = stride,
            }
            stride *= dim;
        }
        strides
    }

    /// The factor's cell for a cell of the result and the eliminated operator's first choice.
    pub fn start(&self, place: &[usize]) -> usize {
        place.iter().zip(&self.axes).map(|(p, s)| p * s).sum()
    }
}

/// The place of a cell in a table of such extents, row-major.
pub fn unravel(mut cell: usize, dims: &[usize]) -> Vec<usize> {
    let mut place = vec![0; dims.len()];
    for (at, dim) in place.iter_mut().zip(dims).rev() {
        *at = cell % dim;
        cell /= dim;
    }
    place
}

/// The factors and operators that are not eliminated yet.
struct Left {
    touching: Vec<BTreeMap<usize, Factor>>,
    neighbours: Vec<BTreeSet<usize>>,
    added: usize,
}

impl Left {
    fn new(operators: usize) -> Self {
        Self {
            touching: vec![BTreeMap::new(); operators],
            neighbours: vec![BTreeSet::new(); operators],
            added: 0,
        }
    }

    fn add(&mut self, factor: &Factor) {
        for &o in &factor.scope {
            self.touching[o].insert(self.added, factor.clone());
            let others = factor.scope.iter().filter(|other| **other != o);
            self.neighbours[o].extend(others);
        }
        self.added += 1;
    }

    /// Take the factors of an operator out, and the operator itself.
    fn take(&mut self, operator: usize) -> Vec<Factor> {
        let factors = std::mem::take(&mut self.touching[operator]);
        for (id, factor) in &factors {
            for &o in &factor.scope {
                self.touching[o].remove(id);
                self.neighbours[o].remove(&operator);
            }
        }
        factors.into_values().collect()
    }
}

/// The other operators that factors of `operator` touch, ascending.
fn scope(operator: Option<usize>, factors: &[Factor]) -> Vec<usize> {
    let mut scope: Vec<usize> = factors
        .iter()
        .flat_map(|f| f.scope.iter().copied())
        .filter(|o| Some(*o) != operator)
        .collect();
    scope.sort_unstable();
    scope.dedup();
    scope
}
