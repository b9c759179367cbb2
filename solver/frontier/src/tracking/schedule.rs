//! The order in which operators are eliminated, and the classes of equal tables on the way.
//!
//! Eliminating an operator replaces it and all factors that touch it by one factor over its
//! neighbours' choices (bucket elimination, Dechter 1999; TensorOpt's node, edge and branch
//! elimination, Eq. 4 to 7, are its cases with one and two neighbours). The operator with the least
//! work goes first; among equals, the one whose surroundings have been eliminated least deeply: on
//! a chain of repeated layers every second boundary goes, then every second of the remaining ones.
//! Factors that are computed alike form one class, which is computed once, so that n equal layers
//! take log n classes.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::model::error::SolveError;
use crate::model::ids::{ids, CostsId, EdgeId, IdVec, MapId, OperatorId, TableId};
use crate::model::problem::Problem;
use crate::model::selection::{Selection, SetId};
use crate::model::watch::Watch;

/// Amounts of work above this are not distinguished.
const HOPELESS: f64 = 1e30;

ids! {
    /// Names a class of tables.
    ClassId(usize);
}

/// Per axis of a factor, the axis of the result that it becomes; `None` for the eliminated
/// operator.
pub type Places = Vec<Option<usize>>;

/// A table over some operators' selected choices; equal classes have equal contents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Class {
    /// An edge's alternatives.
    Edge(EdgeClass),
    /// Joined factors and the operator that is eliminated, if any.
    Step {
        eliminated: Option<Eliminated>,
        factors: Vec<(ClassId, Places)>,
    },
}

/// An edge between two sets of choices.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EdgeClass {
    pub table: TableId,
    rows: MapId,
    columns: MapId,
    source_set: SetId,
    target_set: SetId,
}

/// An operator as its class sees it: its choices, and its costs unless another copy carries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Eliminated {
    pub costs: Option<CostsId>,
    pub set: SetId,
}

/// The origin of a concrete factor.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    Edge(EdgeId),
    /// A position in [`Schedule::steps`].
    Step(usize),
}

/// A class applied to concrete operators.
#[derive(Debug, Clone)]
pub struct Factor {
    pub class: ClassId,
    /// The operators of its axes.
    pub scope: Vec<OperatorId>,
    pub origin: Origin,
}

/// Joins factors and eliminates `operator`, unless it is `None`.
#[derive(Debug)]
pub struct Step {
    pub operator: Option<OperatorId>,
    pub factors: Vec<Factor>,
    pub result: Factor,
}

/// Limits on the size of one elimination and of all of them.
#[derive(Debug, Clone, Copy)]
pub struct Width {
    /// Cells times choices of one elimination.
    pub step_work: f64,
    pub table_cells: f64,
    pub all_cells: f64,
    /// Whether factors are joined until a step has at most two.
    pub pairs: bool,
    /// Whether copies of an operator are eliminated where its elimination is too wide
    /// (mini-buckets, Dechter and Rish 2003), which makes costs lower bounds. Otherwise that is an
    /// error.
    pub relax: bool,
}

/// An order of eliminations and the classes of its tables.
pub struct Schedule<'a> {
    pub problem: &'a Problem,
    pub selection: &'a Selection,
    /// Each class with the extent of each axis; a class comes after the classes that it is built
    /// from.
    pub classes: IdVec<ClassId, (Class, Vec<usize>)>,
    pub steps: Vec<Step>,
    /// Whether an operator was copied.
    pub relaxed: bool,
    known: HashMap<Class, ClassId>,
    cells: f64,
    width: Width,
}

impl<'a> Schedule<'a> {
    /// Computes the order.
    ///
    /// # Errors
    ///
    /// Returns `OverBudget` when the graph is too wide for `width`.
    pub fn new(
        problem: &'a Problem,
        selection: &'a Selection,
        width: Width,
        watch: &Watch,
    ) -> Result<Self, SolveError> {
        let mut schedule = Self {
            problem,
            selection,
            classes: IdVec::default(),
            steps: Vec::new(),
            relaxed: false,
            known: HashMap::new(),
            cells: 0.0,
            width,
        };
        schedule.width.all_cells = watch.room(width.all_cells, size_of::<f64>());
        let mut left = schedule.edge_factors();
        schedule.drop_determined(&mut left);
        let mut depth: IdVec<OperatorId, u32> = IdVec::filled(0, problem.operators.len());
        // Work is positive, so its bits sort like its value.
        let key = |work: f64, depth: u32, o: OperatorId| (work.to_bits(), depth, o);
        let open = (problem.operators.ids()).filter(|o| schedule.choices(*o) > 1);
        let mut work: HashMap<OperatorId, f64> =
            open.map(|o| (o, schedule.work(o, &left))).collect();
        let mut queue: BTreeSet<(u64, u32, OperatorId)> =
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

    /// Returns the results with a single cell: one per component of the graph.
    pub fn roots(&self) -> impl Iterator<Item = &Factor> + '_ {
        let all = self.steps.iter().map(|step| &step.result);
        all.filter(|result| result.scope.is_empty())
    }

    /// Returns the cells of an edge's table for every pair of selected choices, row-major.
    pub fn edge_cells(&self, edge: &EdgeClass) -> Vec<usize> {
        let width = self.problem.tables[edge.table].columns;
        let at = |map: MapId, set: SetId| -> Vec<usize> {
            let map = &self.problem.maps[map];
            let set = self.selection.sets[set].iter();
            set.map(|k| map[*k] as usize).collect()
        };
        let columns = at(edge.columns, edge.target_set);
        let rows = at(edge.rows, edge.source_set);
        rows.iter()
            .flat_map(|row| columns.iter().map(move |column| row * width + column))
            .collect()
    }

    /// Returns the sum of cells times choices over all classes.
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

    /// Joins the components, a single cell each, so that the last step covers the whole graph.
    fn join_components(&mut self) {
        let mut roots: VecDeque<Factor> = self.roots().cloned().collect();
        // Equal components become neighbours, and so do their pairs, their fours, ...
        roots.make_contiguous().sort_by_key(|root| root.class);
        while roots.len() > 1 {
            let pair = roots.drain(..2).collect();
            let joined = self.step(None, pair);
            roots.push_back(joined);
        }
    }

    /// Returns a graph with one factor per edge.
    fn edge_factors(&mut self) -> Remaining {
        let mut left = Remaining::new(self.problem.operators.len());
        for (e, edge) in self.problem.edges.enumerate() {
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

    /// Drops the operators with one choice. They join no factors: each factor loses such an axis
    /// separately.
    fn drop_determined(&mut self, left: &mut Remaining) {
        for operator in self.problem.operators.ids() {
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

    /// Returns the number of an operator's selected choices.
    fn choices(&self, operator: OperatorId) -> usize {
        self.selection.choices(operator).len()
    }

    /// Returns the number of cells of a table over these operators.
    fn cells_of(&self, scope: &[OperatorId]) -> f64 {
        scope
            .iter()
            .map(|o| self.choices(*o) as f64)
            .product::<f64>()
    }

    /// Replaces the two factors with the smallest joint table by that table.
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

    /// Returns a factor without the axis of an operator that has one choice.
    fn narrower(&mut self, operator: OperatorId, factor: Factor) -> Factor {
        let scope = scope(Some(operator), std::slice::from_ref(&factor));
        self.record(None, true, vec![factor], scope)
    }

    /// Eliminates an operator, or only joins factors; the result replaces the factors.
    fn step(&mut self, operator: Option<OperatorId>, factors: Vec<Factor>) -> Factor {
        let scope = scope(operator, &factors);
        self.record(operator, true, factors, scope)
    }

    /// Appends a step, whose result has the axes `scope`.
    fn record(
        &mut self,
        operator: Option<OperatorId>,
        with_costs: bool,
        factors: Vec<Factor>,
        mut scope: Vec<OperatorId>,
    ) -> Factor {
        // The widest axis comes last, because the innermost loop runs along it.
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

    /// Returns the id of a class; equal classes share one.
    fn intern(&mut self, class: Class, scope: &[OperatorId]) -> ClassId {
        if let Some(&id) = self.known.get(&class) {
            return id;
        }
        let dims: Vec<usize> = scope.iter().map(|o| self.choices(*o)).collect();
        self.cells += dims.iter().map(|d| *d as f64).product::<f64>();
        let id = self.classes.push((class.clone(), dims));
        self.known.insert(class, id);
        id
    }

    /// Returns cells times choices of an elimination; infinite above [`HOPELESS`].
    fn work(&self, operator: OperatorId, left: &Remaining) -> f64 {
        let mut work = self.choices(operator) as f64;
        for o in &left.neighbours[operator] {
            work *= self.choices(*o) as f64;
            if work > HOPELESS {
                return f64::INFINITY;
            }
        }
        work
    }

    /// Packs factors into few groups that are each narrow enough, the widest factors first.
    fn buckets(&self, operator: OperatorId, mut factors: Vec<Factor>) -> Vec<Vec<Factor>> {
        factors.sort_by_key(|f| std::cmp::Reverse(f.scope.len()));
        // The tables of all copies must fit next to the existing ones.
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

    /// Returns `OverBudget` where an elimination is too wide.
    fn check_width(
        &self,
        operator: OperatorId,
        work: f64,
        left: &Remaining,
    ) -> Result<(), SolveError> {
        let cells = work / self.choices(operator) as f64;
        let width = &self.width;
        if work > width.step_work
            || cells > width.table_cells
            || self.cells + cells > width.all_cells
        {
            return Err(SolveError::OverBudget(format!(
                "operator {:?} has too many neighbours to be eliminated exactly ({} left, a table of {cells:.1e} cells)",
                self.problem.operators[operator].name,
                left.neighbours[operator].len(),
            )));
        }
        Ok(())
    }
}

/// The factors and operators that are not eliminated yet.
struct Remaining {
    /// The factors of each operator, in the order in which they were added.
    touching: IdVec<OperatorId, BTreeMap<usize, Factor>>,
    neighbours: IdVec<OperatorId, BTreeSet<OperatorId>>,
    added: usize,
}

impl Remaining {
    fn new(operators: usize) -> Self {
        Self {
            touching: IdVec::filled(BTreeMap::new(), operators),
            neighbours: IdVec::filled(BTreeSet::new(), operators),
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

    /// Removes an operator and returns its factors.
    fn take(&mut self, operator: OperatorId) -> Vec<Factor> {
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

/// Returns the other operators that factors of `operator` touch, ascending.
fn scope(operator: Option<OperatorId>, factors: &[Factor]) -> Vec<OperatorId> {
    let mut scope: Vec<OperatorId> = factors
        .iter()
        .flat_map(|f| f.scope.iter().copied())
        .filter(|o| Some(*o) != operator)
        .collect();
    scope.sort_unstable();
    scope.dedup();
    scope
}
