//! The solver's invariants on random bytes, for a bounded time.
//!
//! `make fuzz` runs the same check under libFuzzer (solver/fuzz). An input that it found is
//! replayed here by `SHARDWISE_FUZZ_INPUT=FILE cargo test --test fuzz`.

mod drawn;

use drawn::bytes::Bytes;
use drawn::invariants::holds;

const INPUTS: u64 = 3000;

fn check(data: &[u8], name: &str) {
    if let Err(wrong) = holds(data) {
        panic!("input {name}: {wrong}");
    }
}

#[test]
fn invariants_hold_on_random_bytes() {
    if let Some(file) = std::env::var_os("SHARDWISE_FUZZ_INPUT") {
        let data = std::fs::read(&file).unwrap();
        return check(&data, &file.to_string_lossy());
    }
    for number in 0..INPUTS {
        // Other numbers than those of oracles.rs; short inputs end in zeros.
        let mut bytes = Bytes::numbered(number + (1 << 32));
        let length = 16 << bytes.below(6);
        let data: Vec<u8> = (0..length).map(|_| bytes.byte()).collect();
        check(&data, &number.to_string());
    }
}
