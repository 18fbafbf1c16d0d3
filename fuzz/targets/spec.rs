//! Requests as JSON: any bytes are refused, or are a request that says the same when it is written and read again, and
//! whose check ends without a panic.
#![no_main]

use api::{exec::ExecRequest, spec::CreateRequest};
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

fn read<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let again = serde_json::to_vec(&value).expect("what was read can be written");
    let same: T = serde_json::from_slice(&again).expect("what was written can be read");
    assert_eq!(again, serde_json::to_vec(&same).expect("written again"));
    Some(value)
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(request) = read::<CreateRequest>(bytes) {
        let _ = request.validate();
    }
    if let Some(request) = read::<ExecRequest>(bytes) {
        let _ = request.validate();
    }
});
