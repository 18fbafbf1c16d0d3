//! Query strings to typed structs: strict UTF-8, numbers and booleans by their field's type, unknown fields refused,
//! every error with its field's name.

use api::{Error, Result};
use serde::{
    Deserializer,
    de::{self, DeserializeOwned, IntoDeserializer, Visitor, value::MapDeserializer},
    forward_to_deserialize_any,
};

use super::call::named;

/// Parses `query` (what stands after the `?`). Errors: `invalid_argument`.
pub(crate) fn parse<T: DeserializeOwned>(query: &str) -> Result<T> {
    let mut pairs = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = decode(key).ok_or_else(|| Error::invalid("query: a name is not percent-encoded UTF-8"))?;
        let value = decode(value)
            .ok_or_else(|| Error::invalid(format!("{}: not percent-encoded UTF-8", key.escape_default())))?;
        pairs.push((key, Text(value)));
    }
    let map = MapDeserializer::<_, de::value::Error>::new(pairs.into_iter());
    serde_path_to_error::deserialize(map).map_err(|e| named("query", &e))
}

/// `%xx` and `+`. None where it is malformed or not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let high = (bytes.next()? as char).to_digit(16)?;
                let low = (bytes.next()? as char).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

/// A value whose type the field decides.
struct Text(String);

impl<'de> IntoDeserializer<'de> for Text {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident $ty:ty, $what:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            let value = self.0.parse::<$ty>().map_err(|_| {
                let shown: String = self.0.chars().take(80).collect();
                de::Error::custom(format!("`{shown}` is not {}", $what))
            })?;
            visitor.$visit(value)
        })*
    };
}

impl<'de> Deserializer<'de> for Text {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_string(self.0)
    }
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_enum(self.0.into_deserializer())
    }
    parsed! {
        deserialize_bool visit_bool bool, "true or false";
        deserialize_u8 visit_u8 u8, "a number from 0 to 255";
        deserialize_u16 visit_u16 u16, "a number from 0 to 65535";
        deserialize_u32 visit_u32 u32, "a number from 0 to 4294967295";
        deserialize_u64 visit_u64 u64, "a whole number from 0 on";
        deserialize_i32 visit_i32 i32, "a whole number";
        deserialize_i64 visit_i64 i64, "a whole number";
    }
    forward_to_deserialize_any! {
        i8 i16 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct seq tuple tuple_struct map
        struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{
        file::{ReadQuery, WriteQuery},
        image::{ImportQuery, LayerKind},
    };

    #[test]
    fn typed_values_come_out() {
        let query: ReadQuery = parse("path=%2Fa%20b+%E2%89%A4&offset=7&length=9").unwrap();
        assert_eq!((query.path.as_str(), query.offset, query.length), ("/a b ≤", 7, Some(9)));
        let query: WriteQuery = parse("path=x&append=true&mode=0644").unwrap();
        assert_eq!((query.append, query.mode), (true, Some(0o644)));
        let query: ImportQuery = parse("name=a&kind=toolkit").unwrap();
        assert_eq!(query.kind, LayerKind::Toolkit);
    }

    #[test]
    fn each_fault_names_its_field() {
        for (query, field) in [
            ("", "path"),
            ("path=a&offset=-1", "offset"),
            ("path=a&offset=x", "offset"),
            ("path=a&tty=1", "tty"),
            ("path=a&path=b", "path"),
            ("path=%ff", "path"),
            ("path=%zz", "path"),
            ("path=%2", "path"),
            ("%ff=1", "query"),
        ] {
            let error = parse::<ReadQuery>(query).unwrap_err();
            assert!(error.message.contains(field), "{query}: {error}");
        }
        let error = parse::<ImportQuery>("name=a&kind=top").unwrap_err();
        assert!(error.message.starts_with("kind"), "{error}");
    }
}
