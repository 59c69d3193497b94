"""Dates and times."""

import calendar
from datetime import date, datetime, timedelta


# == days_between, date_difference
# first: start, begin
# second: stop, finish
# - Return the number of days between two dates.
# - Count the days from {first} to {second}.
# - How many days lie between {first} and {second}?
# ? Give the distance from {first} to {second} in days.
def days_between(first: date, second: date) -> int:
    return abs((second - first).days)


assert days_between(date(2024, 1, 1), date(2024, 1, 31)) == 30
assert days_between(date(2024, 3, 1), date(2024, 2, 1)) == 29
assert days_between(date(2024, 1, 1), date(2024, 1, 1)) == 0


# == add_days, days_later
# day: start, when
# count: days, n
# - Return the date some days later.
# - Add {count} days to {day}.
# - Return the date {count} days after {day}.
# ? Which date is {count} days after {day}?
def add_days(day: date, count: int) -> date:
    return day + timedelta(days=count)


assert add_days(date(2024, 2, 28), 1) == date(2024, 2, 29)
assert add_days(date(2024, 1, 1), -1) == date(2023, 12, 31)


# == is_weekend, falls_on_weekend
# day: when, moment
# - Return True if a date is a Saturday or a Sunday.
# - Check whether {day} is at the weekend.
# - Tell whether {day} falls on a Saturday or Sunday.
# ? Is {day} a Saturday or a Sunday?
def is_weekend(day: date) -> bool:
    return day.weekday() >= 5


assert is_weekend(date(2024, 6, 1))
assert is_weekend(date(2024, 6, 2))
assert not is_weekend(date(2024, 6, 3))


# == weekday_name, day_name
# day: when, moment
# - Return the name of the weekday of a date.
# - Name the day of the week of {day} in English.
# - Return Monday, Tuesday and so on for {day}.
# ? What is the English name of the day of the week of {day}?
def weekday_name(day: date) -> str:
    names = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    return names[day.weekday()]


def weekday_name(day: date) -> str:
    return calendar.day_name[day.weekday()]


assert weekday_name(date(2024, 6, 3)) == "Monday"
assert weekday_name(date(2024, 6, 9)) == "Sunday"


# == days_in_month, month_length
# year: y
# month: m
# - Return the number of days in a month.
# - How many days has {month} of {year}?
# - Return how many days {month} has in {year}, leap years included.
# ? Give the length of {month} in {year} in days.
def days_in_month(year: int, month: int) -> int:
    return calendar.monthrange(year, month)[1]


def days_in_month(year: int, month: int) -> int:
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return 29 if leap else 28
    if month in (4, 6, 9, 11):
        return 30
    return 31


assert days_in_month(2024, 2) == 29
assert days_in_month(2023, 2) == 28
assert days_in_month(2023, 4) == 30
assert days_in_month(2023, 12) == 31


# == parse_date, read_date
# text: string, value
# - Parse a date of the form YYYY-MM-DD.
# - Turn text such as 2024-05-01 into a date.
# - Read {text}, written YYYY-MM-DD, as a date.
# ? Make a date of {text}, which looks like 2024-05-01.
def parse_date(text: str) -> date:
    return datetime.strptime(text, "%Y-%m-%d").date()


def parse_date(text: str) -> date:
    year, month, day = text.split("-")
    return date(int(year), int(month), int(day))


assert parse_date("2024-05-01") == date(2024, 5, 1)
assert parse_date("1999-12-31") == date(1999, 12, 31)


# == format_date, show_date
# day: when, moment
# - Format a date as DD.MM.YYYY.
# - Write {day} as DD.MM.YYYY.
# - Return {day} as text like 31.12.2024.
# ? Show {day} in the form 31.12.2024.
def format_date(day: date) -> str:
    return day.strftime("%d.%m.%Y")


assert format_date(date(2024, 12, 31)) == "31.12.2024"
assert format_date(date(2024, 1, 2)) == "02.01.2024"


# == age_on, age_in_years
# born: birthday, birth
# day: when, today
# - Return the age in whole years on a date.
# - How old is someone born on {born} on {day}?
# - Compute the age in years on {day} of a person born on {born}.
# ? Give the whole years from {born} to {day}.
def age_on(born: date, day: date) -> int:
    age = day.year - born.year
    if (day.month, day.day) < (born.month, born.day):
        age -= 1
    return age


assert age_on(date(2000, 5, 10), date(2020, 5, 10)) == 20
assert age_on(date(2000, 5, 10), date(2020, 5, 9)) == 19


# == next_weekday, next_monday_like
# day: when, start
# weekday: number, wanted
# - Return the next date that falls on a weekday, Monday being 0.
# - Find the first date after {day} whose weekday number is {weekday}.
# - Return the date after {day} with the given weekday, Monday is 0.
# ? Which is the first date after {day} on weekday {weekday}, with 0 for Monday?
def next_weekday(day: date, weekday: int) -> date:
    day += timedelta(days=1)
    while day.weekday() != weekday:
        day += timedelta(days=1)
    return day


assert next_weekday(date(2024, 6, 3), 0) == date(2024, 6, 10)
assert next_weekday(date(2024, 6, 3), 4) == date(2024, 6, 7)


# == minutes_between, minutes_from_to
# start: first, begin
# finish: second, stop
# - Return the minutes between two times written HH:MM.
# - Count the minutes from {start} to {finish}, both HH:MM of one day.
# - How many minutes pass from {start} to {finish}, written like 08:30?
# ? Give the minutes from {start} to {finish} on one day, both in the form 08:30.
def minutes_between(start: str, finish: str) -> int:
    hours, minutes = start.split(":")
    begin = int(hours) * 60 + int(minutes)
    hours, minutes = finish.split(":")
    return int(hours) * 60 + int(minutes) - begin


assert minutes_between("08:30", "10:00") == 90
assert minutes_between("00:00", "23:59") == 1439


# == date_range, all_dates
# first: start, begin
# last: stop, finish
# - List all dates from {first} to {last}, both included.
# - Return every date between two dates, with both of them.
# - Return a list of the dates from {first} up to and including {last}.
# ? Give each date from {first} to {last}, with the last one too.
def date_range(first: date, last: date) -> list:
    count = (last - first).days + 1
    return [first + timedelta(days=i) for i in range(count)]


assert date_range(date(2024, 1, 30), date(2024, 2, 1)) == [
    date(2024, 1, 30),
    date(2024, 1, 31),
    date(2024, 2, 1),
]
assert date_range(date(2024, 1, 1), date(2024, 1, 1)) == [date(2024, 1, 1)]


# ==! quarter_of
# day: when, moment
# ? Return the quarter of the year of {day}, from 1 to 4.
# ? In which quarter of its year, 1 to 4, is {day}?
def quarter_of(day: date) -> int:
    return (day.month - 1) // 3 + 1


assert quarter_of(date(2024, 1, 31)) == 1
assert quarter_of(date(2024, 4, 1)) == 2
assert quarter_of(date(2024, 12, 31)) == 4
