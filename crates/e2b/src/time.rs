//! Times as their JSON has them: RFC 3339.

const DAY_MS: i64 = 86_400_000;

/// Milliseconds since the Unix epoch as UTC.
pub(crate) fn format(ms: i64) -> String {
    let (days, of_day) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let (year, month, day) = civil(days);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, milli) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// The day of the proleptic Gregorian calendar, from days since the Unix epoch. Years begin in March here, so that the
/// leap day is the last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// `2026-01-02T03:04:05[.678][Z|+01:00]` as milliseconds since the Unix epoch. None where it is no such time.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let zone_at = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut clock = clock.splitn(3, ':').map(number);
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let ok = (1..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !ok || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let milli = match fraction {
        "" => 0,
        digits => number(&format!("{:0<3}", digits.get(..3).unwrap_or(digits)))?,
    };
    let seconds = ((hour * 60 + minute) * 60 + second) - offset_minutes(zone)? * 60;
    Some(days_of(year, month, day) * DAY_MS + seconds * 1000 + milli)
}

fn number(text: &str) -> Option<i64> {
    let ok = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    ok.then(|| text.parse().ok())?
}

fn offset_minutes(zone: &str) -> Option<i64> {
    if matches!(zone, "" | "Z" | "z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    Some(sign * (number(hours)? * 60 + number(minutes)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times() {
        assert_eq!(format(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(format(951_782_400_001), "2000-02-29T00:00:00.001Z");
        assert_eq!(format(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(parse("2000-02-29T01:00:00+01:00"), Some(951_782_400_000));
        assert_eq!(parse("2026-11-30T20:00:00.123456+00:00"), parse("2026-11-30T20:00:00.123Z"));
        for text in ["", "2000-02-29", "2000-13-01T00:00:00Z", "x-1-1T0:0:0Z", "2000-01-01T00:00:00+x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(ms in 0i64..253_402_300_799_000) {
            prop_assert_eq!(parse(&format(ms)), Some(ms));
        }
        #[test]
        fn any_text_is_read_or_not(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
