//! Weighted optima over all strategies, and what they prove about a frontier.

pub mod certificate;
pub mod certified;
pub mod dead_end;
pub mod descent;
pub mod exact;
pub mod marginals;
pub mod min_plus;
pub mod restricted;
pub mod scalar;
pub mod tables;
pub mod weighted;
