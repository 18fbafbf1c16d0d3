//! Sizes and durations as people write and read them. Sizes are binary: 1K is 1024 bytes.

use std::time::Duration;

/// `512M`, `2G`, `1.5GiB`, `4096`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let units: [(&str, f64); 6] =
        [("", 1.0), ("B", 1.0), ("K", 1024.0), ("M", 1048576.0), ("G", 1073741824.0), ("T", 1099511627776.0)];
    let expected = || format!("`{text}` is not a size: write 512M, 2G or a number of bytes");
    let upper = text.trim().to_ascii_uppercase();
    let (number, unit) = split(&upper).ok_or_else(expected)?;
    let unit =
        unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B').filter(|u| !u.is_empty())).unwrap_or(unit);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit).ok_or_else(expected)?;
    whole(number * factor).ok_or_else(expected)
}

/// `30s`, `10m`, `2h`, `1h30m`, `500ms`, `1d`; a bare number is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || format!("`{text}` is not a duration: write 30s, 10m, 2h or 1h30m");
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(expected());
    }
    if let Ok(seconds) = rest.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let mut total_ms = 0.0;
    while !rest.is_empty() {
        let (number, after) = split(rest).ok_or_else(expected)?;
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let factor = match &after[..end] {
            "ms" => 1.0,
            "s" => 1000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            "d" => 86_400_000.0,
            _ => return Err(expected()),
        };
        total_ms += number * factor;
        rest = &after[end..];
    }
    whole(total_ms).map(Duration::from_millis).ok_or_else(expected)
}

/// A decimal number and what follows it.
fn split(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

fn whole(value: f64) -> Option<u64> {
    // Above 2^53 a float is no exact count; nothing here is near it.
    (value.is_finite() && (0.0..9e15).contains(&value)).then_some(value.round() as u64)
}

/// `0.5`, `2`: cores, as thousandths.
pub(crate) fn parse_cpus(text: &str) -> Result<u32, String> {
    let cores: f64 =
        text.parse().map_err(|_| format!("`{text}` is not a number of cores: write 0.5 or 2"))?;
    whole(cores * 1000.0)
        .and_then(|millis| u32::try_from(millis).ok())
        .ok_or_else(|| format!("`{text}` is not a number of cores: write 0.5 or 2"))
}

/// `KEY=value`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}`: expected KEY=VALUE"))?;
    if key.is_empty() {
        return Err(format!("`{text}`: the key is empty"));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// `512 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            let digits = if value.fract() == 0.0 || value >= 100.0 { 0 } else { 1 };
            return format!("{value:.digits$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// `1 h 2 min`, `3 s`, `40 ms`.
pub(crate) fn duration_ms(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3600 => two(seconds / 60, "min", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

fn two(big: u64, big_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 { format!("{big} {big_unit}") } else { format!("{big} {big_unit} {small} {small_unit}") }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("512M", 512 << 20),
            ("2G", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("10kb", 10240),
            ("7B", 7),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1X", "1e9", "1.2.3", "99999999999T", "1GG", "5iB0"] {
            assert!(parse_size(text).unwrap_err().contains("512M"), "{text}");
        }
        assert_eq!(
            [size(0), size(1536), size(512 << 20), size(3 << 50)],
            ["0 B", "1.5 KiB", "512 MiB", "3072.0 TiB"]
        );
    }

    #[test]
    fn durations() {
        for (text, ms) in [
            ("30s", 30_000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("1d", 86_400_000),
            ("5", 5_000),
            ("0.5s", 500),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "1x", "1h30", "1.s.", "1 week"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(
            [
                duration_ms(40),
                duration_ms(3_900),
                duration_ms(60_000),
                duration_ms(3_720_000),
                duration_ms(90_000_000)
            ],
            ["40 ms", "3 s", "1 min", "1 h 2 min", "1 d 1 h"]
        );
    }

    #[test]
    fn cores_and_pairs() {
        assert_eq!(parse_cpus("0.5"), Ok(500));
        assert!(parse_cpus("x").is_err() && parse_cpus("-1").is_err() && parse_cpus("inf").is_err());
        assert_eq!(parse_pair("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(parse_pair("A").is_err() && parse_pair("=x").is_err());
    }
}
