//! HTTP dates in the three forms that a recipient must accept (RFC 9110, 5.6.7).

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Seconds since the Unix epoch. The name of the day must be one, but need not fit the date.
///
/// - `Sun, 06 Nov 1994 08:49:37 GMT`
/// - `Sunday, 06-Nov-94 08:49:37 GMT`: the year is the one with these last two digits that is at most 50 years after
///   now, and else in the past.
/// - `Sun Nov  6 08:49:37 1994`
pub(super) fn parse_http_date_s(text: &str, now_s: i64) -> Option<i64> {
    if let Some((day_name, rest)) = text.split_once(", ") {
        let rest = rest.strip_suffix(" GMT")?;
        if DAYS.contains(&day_name) { rfc850(rest, now_s) } else { short_day(day_name).and_then(|()| imf(rest)) }
    } else {
        let (day_name, rest) = text.split_once(' ')?;
        short_day(day_name)?;
        asctime(rest)
    }
}

fn short_day(name: &str) -> Option<()> {
    DAYS.iter().any(|day| day.get(..3) == Some(name)).then_some(())
}

/// `06 Nov 1994 08:49:37`
fn imf(text: &str) -> Option<i64> {
    let [day, month, year, time] = parts(text, ' ')?;
    seconds(number(year, 4)?, month_of(month)?, number(day, 2)?, time)
}

/// `06-Nov-94 08:49:37`
fn rfc850(text: &str, now_s: i64) -> Option<i64> {
    let [date, time] = parts(text, ' ')?;
    let [day, month, year] = parts(date, '-')?;
    let (this_year, _, _) = civil_from_days(now_s.div_euclid(86_400));
    let mut full_year = this_year - this_year.rem_euclid(100) + number(year, 2)?;
    if full_year > this_year + 50 {
        full_year -= 100;
    } else if full_year <= this_year - 50 {
        full_year += 100;
    }
    seconds(full_year, month_of(month)?, number(day, 2)?, time)
}

/// `Nov  6 08:49:37 1994`
fn asctime(text: &str) -> Option<i64> {
    let (month, rest) = text.split_once(' ')?;
    let (day, rest) = (rest.get(..2)?, rest.get(2..)?.strip_prefix(' ')?);
    let [time, year] = parts(rest, ' ')?;
    let day = match day.strip_prefix(' ') {
        Some(digit) => number(digit, 1)?,
        None => number(day, 2)?,
    };
    seconds(number(year, 4)?, month_of(month)?, day, time)
}

fn parts<const N: usize>(text: &str, separator: char) -> Option<[&str; N]> {
    let parts: Vec<&str> = text.split(separator).take(N + 1).collect();
    parts.try_into().ok()
}

fn number(text: &str, digits: usize) -> Option<i64> {
    (text.len() == digits && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn month_of(name: &str) -> Option<i64> {
    (1..).zip(MONTHS).find(|(_, month)| *month == name).map(|(number, _)| number)
}

fn seconds(year: i64, month: i64, day: i64, time: &str) -> Option<i64> {
    let [hour, minute, second] = parts(time, ':')?;
    let (hour, minute, second) = (number(hour, 2)?, number(minute, 2)?, number(second, 2)?);
    // 60 is a leap second.
    if !(1..=days_in_month(year, month)).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 of a date of the Gregorian calendar. Counted in years that begin in March, so that the leap
/// day is the last of its year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + day_of_year - 719_468
}

/// The date of a day count: the inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // An estimate that is never too late, then set right.
    let mut year = 1970 + if days < 0 { days.div_euclid(365) } else { days / 366 };
    while days_from_civil(year + 1, 1, 1) <= days {
        year += ((days - days_from_civil(year + 1, 1, 1)) / 366).max(0) + 1;
    }
    let mut rest = days - days_from_civil(year, 1, 1);
    let mut month = 1;
    while rest >= days_in_month(year, month) {
        rest -= days_in_month(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_days_are_inverse_over_four_centuries() {
        let mut days = days_from_civil(1799, 12, 31);
        let end = days_from_civil(2201, 1, 1);
        let mut date = (1799, 12, 31);
        while days <= end {
            assert_eq!(civil_from_days(days), date);
            assert_eq!(days_from_civil(date.0, date.1, date.2), days);
            date = match date {
                (y, m, d) if d < days_in_month(y, m) => (y, m, d + 1),
                (y, 12, _) => (y + 1, 1, 1),
                (y, m, _) => (y, m + 1, 1),
            };
            days += 1;
        }
    }

    #[test]
    fn known_days() {
        assert_eq!(days_from_civil(1970, 1, 1), 0);
        assert_eq!(days_from_civil(2000, 2, 29), 11_016);
        assert_eq!(days_from_civil(1969, 12, 31), -1);
    }

    #[test]
    fn the_three_forms_name_the_same_second() {
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse_http_date_s(text, 1_700_000_000), Some(784_111_777), "{text}");
        }
        assert_eq!(parse_http_date_s("Wed Nov 16 08:49:37 1994", 0), Some(784_975_777));
    }

    #[test]
    fn two_digit_years_are_at_most_fifty_years_ahead() {
        let now_s = days_from_civil(2025, 6, 1) * 86_400;
        let year = |text: &str| parse_http_date_s(text, now_s).map(|s| civil_from_days(s.div_euclid(86_400)).0);
        assert_eq!(year("Monday, 01-Jan-75 00:00:00 GMT"), Some(2075));
        assert_eq!(year("Monday, 01-Jan-76 00:00:00 GMT"), Some(1976));
        assert_eq!(year("Monday, 01-Jan-26 00:00:00 GMT"), Some(2026));
        assert_eq!(year("Monday, 01-Jan-00 00:00:00 GMT"), Some(2000));
        let late_s = days_from_civil(2090, 6, 1) * 86_400;
        let late = |text: &str| parse_http_date_s(text, late_s).map(|s| civil_from_days(s.div_euclid(86_400)).0);
        assert_eq!(late("Monday, 01-Jan-10 00:00:00 GMT"), Some(2110));
    }

    #[test]
    fn impossible_dates_are_refused() {
        for text in [
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 29 Feb 1900 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:60:00 GMT",
            "Sun, 06 Nov 1994 08:49:61 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 PST",
            "Son, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06-Nov-94 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun Nov 6 08:49:37 1994",
            "Sun Nov  6 08:49:37 1994 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994  08:49:37 GMT",
            "Sün Nov  6 08:49:37 1994",
            "Sun Növ  6 08:49:37 1994",
            "Sun Nov é 08:49:37 1994",
            "1994-11-06T08:49:37Z",
            "soon",
        ] {
            assert_eq!(parse_http_date_s(text, 1_700_000_000), None, "{text}");
        }
    }
}
