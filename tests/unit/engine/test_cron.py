from __future__ import annotations

import zoneinfo

import pytest

from kici.engine.cron import check_zone, parse
from kici.engine.errors import CronError


def test_the_five_fields_are_read_with_ranges_lists_steps_and_names() -> None:
    cron = parse("*/20 6-8 1,15 jan-MAR MON-FRI")
    assert sorted(cron.minutes) == [0, 20, 40]
    assert sorted(cron.hours) == [6, 7, 8]
    assert sorted(cron.days) == [1, 15]
    assert sorted(cron.months) == [1, 2, 3]
    assert sorted(cron.weekdays) == [1, 2, 3, 4, 5]
    assert (cron.any_day, cron.any_weekday) == (False, False)


def test_sunday_is_0_and_7_and_the_end_of_a_week() -> None:
    assert parse("0 0 * * 0").weekdays == parse("0 0 * * 7").weekdays == {0}
    assert sorted(parse("0 0 * * FRI-SUN").weekdays) == [0, 5, 6]
    assert sorted(parse("0 0 * * *").weekdays) == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(parse("10-59/15 * * * *").minutes) == [10, 25, 40, 55]


def test_the_usual_short_forms() -> None:
    assert parse("@daily") == parse("0 0 * * *")
    assert parse(" @Hourly ") == parse("0 * * * *")


@pytest.mark.parametrize("expression", ["0 0 29 2 *", "0 0 30 2,4 *", "0 0 30 2 MON", "0 0 31 1-12 *", "0 0 1-31 2 *"])
def test_what_fires_at_least_now_and_then_is_taken(expression: str) -> None:
    parse(expression)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("0 0 30 2 *", "never fires: no month of it has a day 30"),
        ("0 0 31 2,4,6,9,11 *", "never fires: no month of it has a day 31"),
        ("0 6 * *", "has 4 fields; it takes five"),
        ("0 0 6 * * *", "has 6 fields"),
        ("60 * * * *", "minute '60' is not 0 to 59"),
        ("* 24 * * *", "hour '24' is not 0 to 23"),
        ("* * 0 * *", "day of the month '0' is not 1 to 31"),
        ("* * * 13 *", "month '13' is not 1 to 12, or JAN to DEC"),
        ("* * * * MOM", "day of the week 'MOM' is not 0 to 7, or SUN to SAT"),
        ("*/0 * * * *", "cannot be read"),
        ("*/99 * * * *", "cannot be read"),
        ("5/15 * * * *", "step without a range: write 5-59/15"),
        ("9-5 * * * *", "ends before it begins"),
        ("1, * * * *", "cannot be read"),
        ("1;2 * * * *", "cannot be read"),
        ("@reboot", "is not one of @yearly"),
        ("* * L * *", "'L' is not 1 to 31"),
        ("* * * * 1#2", "cannot be read"),
        ("²  * * * *", "cannot be read"),
    ],
)
def test_what_is_no_cron_or_never_fires_is_refused_with_its_field(expression: str, says: str) -> None:
    with pytest.raises(CronError, match=says):
        parse(expression)


def test_a_time_zone_that_does_not_exist_is_refused_with_the_nearest() -> None:
    check_zone("Europe/Berlin")
    check_zone("UTC")
    with pytest.raises(CronError, match="did you mean 'Europe/Berlin'"):
        check_zone("Europe/Berln")
    for hostile in ("../../etc/passwd", "/etc/localtime", "a\0b", "", "Europe"):
        with pytest.raises(CronError, match="there is no time zone"):
            check_zone(hostile)


def test_a_machine_without_time_zones_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(key: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError(key)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", none)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(CronError, match="install the package tzdata"):
        check_zone("Europe/Berlin")
