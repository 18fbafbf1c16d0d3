//! Ids: any text is refused or is an id that prints as it was read and names its edge.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(id) = text.parse::<api::SandboxId>() {
        assert_eq!(id.as_str(), text);
        assert!(text.contains(id.edge().as_str()));
    }
    if let Ok(id) = text.parse::<api::ExecId>() {
        assert_eq!(id.as_str(), text);
    }
    let _ = text.parse::<api::EdgeId>();
    let _ = text.parse::<api::RequestId>();
});
