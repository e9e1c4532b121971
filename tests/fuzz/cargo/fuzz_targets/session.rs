#![no_main]
#[path = "../../entries.rs"]
#[allow(dead_code, reason = "each target calls one of them")]
mod entries;
#[path = "../../../world/mod.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::session(data));
