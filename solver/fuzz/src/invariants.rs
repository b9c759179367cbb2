//! The solver's invariants (`frontier/tests/drawn/invariants.rs`) under libFuzzer.
//!
//! `make fuzz` builds this with the stable compiler and coverage counters; failing inputs are saved
//! under out/fuzz/.
#![no_main]

#[path = "../../frontier/tests/drawn/mod.rs"]
mod drawn;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(violation) = drawn::invariants::check(data) {
        panic!("{violation}");
    }
});
