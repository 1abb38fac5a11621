//! Times for people and machines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment as `2026-11-16T12:00:00Z`; `None` before 1970.
pub fn rfc3339(moment: SystemTime) -> Option<String> {
    let seconds = moment.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from a day count, with years that begin in March so that the
    // leap day comes last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
}

/// An age as people say it: `850ms`, `12s`, `5m`, `3h`, `2d`.
pub fn age(age: Duration) -> String {
    match age.as_secs() {
        0 => format!("{}ms", age.as_millis()),
        s @ 1..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s @ 3600..86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// A time that is left or given, as people say it, to the nearest of two units: `45s`, `30m`,
/// `1h 30m`, `2d 3h`. An age would make two hours of which a moment is over one.
pub fn span(span: Duration) -> String {
    let seconds = span.saturating_add(Duration::from_millis(500)).as_secs();
    let (large, small, names) = match seconds {
        0 => return format!("{}ms", span.as_millis()),
        1..3600 => (60, 1, ["m", "s"]),
        3600..86_400 => (3600, 60, ["h", "m"]),
        _ => (86_400, 3600, ["d", "h"]),
    };
    let [whole, rest] = {
        let nearest = (seconds + small / 2) / small;
        [nearest / (large / small), nearest % (large / small)]
    };
    match (whole, rest) {
        (0, rest) => format!("{rest}{}", names[1]),
        (whole, 0) => format!("{whole}{}", names[0]),
        (whole, rest) => format!("{whole}{} {rest}{}", names[0], names[1]),
    }
}

/// A moment as `2026-11-16T12:00:00Z`, from microseconds since 1970.
pub fn rfc3339_us(at_us: i64) -> String {
    let since = Duration::from_micros(u64::try_from(at_us).unwrap_or_default());
    rfc3339(UNIX_EPOCH + since).unwrap_or_default()
}

/// A moment in microseconds since 1970, as records have it; the first one for all before.
pub fn micros(moment: SystemTime) -> i64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A duration as people write it: `500ms`, `30s`, `5m`, `2h`, `7d`, `1w`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 7 * 86_400_000,
        _ => 0,
    };
    let number = text[..digits].parse::<u64>().ok().filter(|_| unit > 0);
    number
        .and_then(|number| number.checked_mul(unit))
        .map(Duration::from_millis)
        .ok_or_else(|| "write it as 500ms, 30s, 5m, 2h, 7d or 1w".to_owned())
}

/// A moment in the past: how long ago, or a date, or a date with a time, in
/// UTC.
pub fn parse_since(text: &str) -> Result<SystemTime, String> {
    let wrong = || "write it as 30m, 2h, 7d, 2026-11-16 or 2026-11-16T12:00:00Z".to_owned();
    if let Ok(ago) = parse_duration(text) {
        return Ok(SystemTime::now().checked_sub(ago).filter(|at| *at > UNIX_EPOCH).unwrap_or(UNIX_EPOCH));
    }
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let numbers = |text: &str, mark: char| {
        text.split(mark).map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>()
    };
    let (date, time) = (numbers(date, '-'), numbers(time.trim_end_matches('Z'), ':'));
    let (Some([year, month, day]), Some([hour, minute, rest @ ..])) = (date.as_deref(), time.as_deref())
    else {
        return Err(wrong());
    };
    let second = match rest {
        [] => 0,
        [second] => *second,
        _ => return Err(wrong()),
    };
    let fits = (1970..10_000).contains(year) && (1..=12).contains(month) && (1..=31).contains(day);
    if !fits || *hour > 23 || *minute > 59 || second > 59 {
        return Err(wrong());
    }
    // The same count of days as above, the other way round.
    let (year, month) = if *month > 2 { (*year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let days =
        era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    let moment = UNIX_EPOCH + Duration::from_secs(days * 86_400 + hour * 3600 + minute * 60 + second);
    // Two months have no 31st day, and February fewer.
    match rfc3339(moment) {
        Some(back) if back.starts_with(text.split(['T', ' ']).next().unwrap_or_default()) => Ok(moment),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn writes_moments_and_ages() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(at(951_782_400).as_deref(), Some("2000-02-29T00:00:00Z"));
        assert_eq!(at(1_794_830_400).as_deref(), Some("2026-11-16T12:00:00Z"));
        assert_eq!(at(4_107_542_399).as_deref(), Some("2100-02-28T23:59:59Z"));
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), None);
        assert_eq!(age(Duration::from_secs(59)), "59s");
        assert_eq!(age(Duration::from_secs(7300)), "2h");
    }

    #[test]
    fn a_time_that_is_left_is_the_nearest_one() {
        for (milliseconds, said) in [
            (0, "0ms"),
            (499, "499ms"),
            (500, "1s"),
            (59_000, "59s"),
            (59_900, "1m"),
            (90_000, "1m 30s"),
            (1_799_980, "30m"),
            (1_795_000, "29m 55s"),
            (5_400_000, "1h 30m"),
            (7_195_000, "2h"),
            (7_140_000, "1h 59m"),
            (28_799_990, "8h"),
            (86_399_990, "1d"),
            (604_700_000, "7d"),
            (97_200_000, "1d 3h"),
        ] {
            assert_eq!(span(Duration::from_millis(milliseconds)), said, "{milliseconds}");
        }
    }

    #[test]
    fn reads_durations_and_moments() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("2w"), Ok(Duration::from_secs(14 * 86_400)));
        for wrong in ["", "5", "m", "-5m", "5 m", "1.5h", "99999999999999999999d", "9999999999999999999w"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        for text in ["1970-01-01", "2000-02-29", "2026-11-16", "2100-02-28", "2024-12-31"] {
            let there = parse_since(text).unwrap();
            assert_eq!(rfc3339(there).unwrap(), format!("{text}T00:00:00Z"));
        }
        assert_eq!(rfc3339(parse_since("2026-11-16T12:34:56Z").unwrap()).unwrap(), "2026-11-16T12:34:56Z");
        assert_eq!(rfc3339(parse_since("2026-11-16 12:34").unwrap()).unwrap(), "2026-11-16T12:34:00Z");
        let ago = SystemTime::now().duration_since(parse_since("2h").unwrap()).unwrap();
        // Clocks are set now and then.
        assert!((7140..7260).contains(&ago.as_secs()), "{ago:?}");
        for wrong in
            ["2026-02-30", "2026-13-01", "2026-1-1", "yesterday", "2026-11-16T25:00", "2026-11-16T1:2:3:4"]
        {
            assert!(parse_since(wrong).is_err(), "{wrong}");
        }
    }
}
