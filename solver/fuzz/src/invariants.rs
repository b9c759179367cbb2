//! The solver's invariants (`frontier/tests/drawn/invariants.rs`) under libFuzzer.
//!
//! `make fuzz` builds this on the stable compiler with coverage counters; inputs that fail are
//! kept under out/fuzz/.
#![no_main]

#[path = "../../frontier/tests/drawn/mod.rs"]
mod drawn;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(wrong) = drawn::invariants::holds(data) {
        panic!("{wrong}");
    }
});
