//! Permission bits on the wire: octal text such as `"0644"`, as every tool of the field writes them. A JSON number is
//! refused: whether `644` meant octal nobody could tell.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Permission bits with setuid, setgid and sticky.
const BITS_MAX: u32 = 0o7777;

fn parse<E: Error>(text: &str) -> Result<u32, E> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let bits =
        u32::from_str_radix(digits, 8).ok().filter(|bits| *bits <= BITS_MAX && !digits.starts_with('+'));
    bits.ok_or_else(|| {
        E::custom("expected permission bits as octal text, such as \"0644\", at most \"7777\"")
    })
}

pub(crate) fn serialize<S: Serializer>(bits: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{bits:04o}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    parse(&String::deserialize(deserializer)?)
}

/// The same, where there may be none.
pub(crate) mod option {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(bits: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        match bits {
            Some(bits) => super::serialize(bits, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
        Option::<String>::deserialize(deserializer)?.map(|text| parse(&text)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde::de::value::Error;

    #[test]
    fn octal_text_and_nothing_else() {
        let parse = |text| super::parse::<Error>(text);
        assert_eq!(parse("644"), Ok(0o644));
        assert_eq!(parse("0755"), Ok(0o755));
        assert_eq!(parse("0o7777"), Ok(0o7777));
        for bad in ["", "10000", "8", "999999", "-1", "+1", "0x1", "rwx", "6 4"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
