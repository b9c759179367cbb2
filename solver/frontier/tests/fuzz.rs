//! Checks the solver's invariants on a fixed number of random inputs.
//!
//! `make fuzz` runs the same check under libFuzzer (solver/fuzz). To replay an input on which it
//! fails, run `SHARDWISE_FUZZ_INPUT=FILE cargo test --test fuzz`.

mod drawn;

use drawn::bytes::Bytes;
use drawn::invariants;

const INPUTS: u64 = 3000;

fn check(data: &[u8], name: &str) {
    if let Err(violation) = invariants::check(data) {
        panic!("input {name}: {violation}");
    }
}

#[test]
fn invariants_hold_on_random_bytes() {
    if let Some(file) = std::env::var_os("SHARDWISE_FUZZ_INPUT") {
        let data = std::fs::read(&file).unwrap();
        return check(&data, &file.to_string_lossy());
    }
    for number in 0..INPUTS {
        // The numbers differ from those of oracles.rs; short inputs end in zeros.
        let mut bytes = Bytes::numbered(number + (1 << 32));
        let length = 16 << bytes.below(6);
        let data: Vec<u8> = (0..length).map(|_| bytes.byte()).collect();
        check(&data, &number.to_string());
    }
}
