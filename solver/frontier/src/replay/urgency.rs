//! Which of the ready tasks that wait for a resource without the program's order is the most
//! urgent.

/// How urgent a ready task is. Of equally urgent ones the lower number goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Urgency {
    /// The longest path from the task's start to the end of the step comes first (upward rank,
    /// HeteroG, Section 4.2).
    #[default]
    Upward,
    /// The shortest of the longest paths up to a task's end comes first: what HeteroG's published
    /// code orders by.
    Depth,
    /// The task that became ready first comes first, as in a framework's queue.
    Fifo,
}

impl Urgency {
    /// All kinds with their names.
    pub const NAMES: [(&'static str, Urgency); 3] = [
        ("rank", Urgency::Upward),
        ("depth", Urgency::Depth),
        ("fifo", Urgency::Fifo),
    ];

    /// Returns the kind with a name.
    pub fn parse(name: &str) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, urgency)| *urgency)
    }
}
