//! Frames: any bytes end in an error or decode to frames that encode to the same frames, whatever the pieces they came in.
#![no_main]

use api::frame::{ClientFrame, Frame, ServerFrame};
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;

fn all<F: Frame + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = F::decode(&mut buffer) {
        let mut encoded = BytesMut::new();
        frame.encode(&mut encoded);
        let again = F::decode(&mut encoded).expect("ours").expect("whole");
        assert_eq!(again, frame);
        assert!(encoded.is_empty());
    }
}

fuzz_target!(|bytes: &[u8]| {
    all::<ServerFrame>(bytes);
    all::<ClientFrame>(bytes);
});
