//! Bytes inside JSON: plain text when they are UTF-8, `{"base64": "..."}` when they are not.
//!
//! Output of a command is bytes, not text. A person who reads the JSON wants text; a program wants the exact
//! bytes. This gives both: nothing is ever replaced.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

/// Bytes that read as text where they are text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Bytes);

impl Payload {
    /// The bytes as text; what is not UTF-8 becomes U+FFFD.
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl<T: Into<Bytes>> From<T> for Payload {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => s.serialize_str(text),
            Err(_) => {
                let mut map = s.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
                map.end()
            }
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum Shape {
    Text(String),
    Encoded(Encoded),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Encoded {
    base64: String,
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match Shape::deserialize(d)? {
            Shape::Text(text) => Ok(Self(text.into())),
            Shape::Encoded(e) => {
                STANDARD.decode(e.base64).map(|b| Self(b.into())).map_err(serde::de::Error::custom)
            }
        }
    }
}

impl JsonSchema for Payload {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Payload".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Shape::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let payload = Payload::from(bytes);
            let json = serde_json::to_string(&payload).unwrap();
            prop_assert_eq!(serde_json::from_str::<Payload>(&json).unwrap(), payload);
        }
    }

    #[test]
    fn text_reads_as_text() {
        assert_eq!(serde_json::to_string(&Payload::from("hé\n")).unwrap(), "\"hé\\n\"");
        assert_eq!(serde_json::to_string(&Payload::from(vec![0xff])).unwrap(), r#"{"base64":"/w=="}"#);
    }
}
