//! Random problems drawn from bytes, an oracle for them, and the invariants of every solution.
//!
//! The bytes are seeded by a number (`oracles.rs`: problem 17 is the same everywhere) or come from
//! a fuzzer.

#![allow(dead_code)] // each test file uses only some parts

pub mod bytes;
pub mod invariants;
pub mod problem;
pub mod shape;
pub mod units;
