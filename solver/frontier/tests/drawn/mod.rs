//! Random problems drawn from bytes, an oracle for them, and what every answer must obey.
//!
//! The bytes come from a number (`oracles.rs`: problem 17 is the same everywhere) or from a fuzzer.

#![allow(dead_code)] // each test file uses its part

pub mod bytes;
pub mod invariants;
pub mod problem;
pub mod shape;
pub mod units;
