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

#[cfg(test)]
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
}
