"""Tests."""

import unittest


# == test_sorted, test_sorting
# values: numbers, items
# - Test that sorted puts numbers in order.
# - Check sorted with several lists.
# - Make sure that sorting works for empty, short and reversed lists.
# ? Test sorted with an empty list, one element and several.
def test_sorted():
    assert sorted([3, 1, 2]) == [1, 2, 3]
    assert sorted([]) == []
    assert sorted([1]) == [1]
    assert sorted([2, 2, 1]) == [1, 2, 2]


def test_sorted():
    values = [5, 3, 9, 1]
    result = sorted(values)
    assert result == [1, 3, 5, 9]
    assert values == [5, 3, 9, 1]


test_sorted()


# == test_upper, test_upper_case
# - Test that upper makes all letters capital.
# - Check str.upper.
# - Make sure that upper changes letters and nothing else.
# ? Test the method upper of strings.
def test_upper():
    assert "abc".upper() == "ABC"
    assert "a1!".upper() == "A1!"
    assert "".upper() == ""


test_upper()


# == test_split, test_splitting
# - Test that split cuts a string at spaces.
# - Check str.split with spaces and commas.
# - Make sure that split returns all parts.
# ? Test the method split of strings.
def test_split():
    assert "a b c".split() == ["a", "b", "c"]
    assert "a,b".split(",") == ["a", "b"]
    assert "".split() == []


test_split()


# == test_append, test_list_append
# values: numbers, items
# - Test that append adds an item at the end of a list.
# - Check list.append.
# - Make sure that append makes a list longer by one.
# ? Test the method append of lists.
def test_append():
    values = [1, 2]
    values.append(3)
    assert values == [1, 2, 3]
    assert len(values) == 3


test_append()


# == test_division_by_zero, test_zero_division
# - Test that division by zero raises an error.
# - Check that 1 / 0 raises ZeroDivisionError.
# - Make sure that dividing by zero fails.
# ? Test that a division by zero is an error.
def test_division_by_zero():
    try:
        1 / 0
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError("no error was raised")


test_division_by_zero()


# == TestStrings, TestStringMethods
# - Tests of string methods.
# - Unit tests of str: upper, strip and split.
# - Test case for methods of strings.
# ? A test case for upper, strip and split of strings.
class TestStrings(unittest.TestCase):
    def test_upper(self):
        self.assertEqual("abc".upper(), "ABC")

    def test_strip(self):
        self.assertEqual("  a ".strip(), "a")

    def test_split(self):
        self.assertEqual("a b".split(), ["a", "b"])


assert unittest.defaultTestLoader.loadTestsFromTestCase(TestStrings).countTestCases() >= 2


# == TestLists, TestListMethods
# - Tests of list methods.
# - Unit tests of list: append, pop and sort.
# - Test case for methods of lists.
# ? A test case for append, pop and sort of lists.
class TestLists(unittest.TestCase):
    def setUp(self):
        self.values = [3, 1, 2]

    def test_append(self):
        self.values.append(4)
        self.assertEqual(self.values, [3, 1, 2, 4])

    def test_pop(self):
        self.assertEqual(self.values.pop(), 2)

    def test_sort(self):
        self.values.sort()
        self.assertEqual(self.values, [1, 2, 3])


assert unittest.defaultTestLoader.loadTestsFromTestCase(TestLists).countTestCases() >= 2
