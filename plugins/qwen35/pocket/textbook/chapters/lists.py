"""Lists."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, groupby, pairwise


# == sum_list, list_sum, sum_of_list
# numbers: nums, values, items, lst
# total: result, total_sum, s
# number: num, value, item, x
# - Return the sum of {numbers}.
# - Add up all elements of {numbers}.
# - Compute the sum of the numbers in {numbers}.
# - Return the total of the values in {numbers}, which is 0 for an empty list.
# - Sum the numbers of a list.
# ? What do all the elements of {numbers} make together?
# ? Give the result of adding every element of {numbers} to the others.
def sum_list(numbers: list[int]) -> int:
    total = 0
    for number in numbers:
        total += number
    return total


def sum_list(numbers: list[int]) -> int:
    return sum(numbers)


assert sum_list([1, 2, 3]) == 6
assert sum_list([5]) == 5
assert sum_list([]) == 0
assert sum_list([-1, 1, -2]) == -2


# == multiply_list, product_of_list, list_product, product
# numbers: nums, values, items, lst
# result: total, answer, prod, p
# number: num, value, item, x
# - Return the product of all elements of {numbers}.
# - Multiply all elements of {numbers} with each other.
# - Compute the product of the values in {numbers}; it is 1 for an empty list.
# - Return what the elements of {numbers} give when multiplied together.
# - Multiply the numbers of a list.
# ? What comes out when every element of {numbers} is a factor?
# ? Give the product of the whole list {numbers}.
def multiply_list(numbers: list[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


def multiply_list(numbers: list[int]) -> int:
    return math.prod(numbers)


assert multiply_list([2, 3, 4]) == 24
assert multiply_list([7]) == 7
assert multiply_list([]) == 1
assert multiply_list([-1, 5, 0]) == 0


# == maximum, find_max, find_maximum, largest
# numbers: nums, values, items, lst
# best: biggest, highest, result, max_value
# number: num, value, item, x
# - Return the largest of {numbers}.
# - Find the maximum of a list of numbers.
# - Return the greatest element of {numbers}.
# - Find the biggest value in {numbers}.
# - Return the element of {numbers} that no other exceeds.
# ? Which of {numbers} is the highest?
# ? Give the top value of the list {numbers}.
def maximum(numbers: list[int]) -> int:
    best = numbers[0]
    for number in numbers[1:]:
        if number > best:
            best = number
    return best


def maximum(numbers: list[int]) -> int:
    best = numbers[0]
    for number in numbers:
        best = max(best, number)
    return best


def maximum(numbers: list[int]) -> int:
    return max(numbers)


assert maximum([3, 9, 2]) == 9
assert maximum([5]) == 5
assert maximum([-4, -2, -8]) == -2


# == minimum, find_min, find_minimum, smallest
# numbers: nums, values, items, lst
# best: least, lowest, result, min_value
# number: num, value, item, x
# - Return the smallest of {numbers}.
# - Find the minimum of a list of numbers.
# - Return the least element of {numbers}.
# - Find the lowest value in {numbers}.
# - Return the element of {numbers} that no other is below.
# ? Which of {numbers} is the lowest?
# ? Give the bottom value of the list {numbers}.
def minimum(numbers: list[int]) -> int:
    best = numbers[0]
    for number in numbers[1:]:
        if number < best:
            best = number
    return best


def minimum(numbers: list[int]) -> int:
    return min(numbers)


assert minimum([3, 1, 2]) == 1
assert minimum([5]) == 5
assert minimum([-4, -2, -8]) == -8


# == min_and_max, find_min_max, minimum_and_maximum
# numbers: nums, values, items, lst
# low: smallest, lowest, min_value, lo
# high: largest, highest, max_value, hi
# number: num, value, item, x
# - Return the smallest and the largest of {numbers} as a tuple.
# - Find both the minimum and the maximum of {numbers}; return them as a pair.
# - Return a tuple (minimum, maximum) of a list of numbers.
# - Return the lowest and the highest value in {numbers}, in this order.
# - Compute the minimum and maximum of a list together.
# ? Between which two of its elements do all others of {numbers} lie? The lower comes first.
# ? Give two values of {numbers} in a tuple: the least, then the greatest.
def min_and_max(numbers: list[int]) -> tuple[int, int]:
    return min(numbers), max(numbers)


def min_and_max(numbers: list[int]) -> tuple[int, int]:
    low = high = numbers[0]
    for number in numbers:
        if number < low:
            low = number
        if number > high:
            high = number
    return low, high


assert min_and_max([3, 1, 2]) == (1, 3)
assert min_and_max([5]) == (5, 5)
assert min_and_max([-1, -7, 0]) == (-7, 0)


# == average, mean, calculate_average
# numbers: nums, values, items, data
# total: result, total_sum, s, acc
# number: num, value, item, x
# - Return the average of {numbers}.
# - Compute the arithmetic mean of {numbers}.
# - Return the mean of a list of numbers.
# - Divide the sum of {numbers} by how many they are.
# - Calculate the average value of a list.
# ? What is the average of the elements of {numbers}?
# ? Give the mean value of {numbers}.
def average(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def average(numbers: list[float]) -> float:
    total = 0
    for number in numbers:
        total += number
    return total / len(numbers)


assert average([1, 2, 3]) == 2.0
assert average([1, 2]) == 1.5
assert average([5]) == 5.0
assert average([-2, 2]) == 0.0


# == weighted_average, weighted_mean, compute_weighted_average
# values: numbers, nums, grades
# weights: factors, coefficients, importance
# - Return the average of {values}, weighted by {weights}.
# - Compute the weighted mean of {values}, with one weight for each value.
# - Divide the sum of values times weights by the sum of the weights.
# - Return the weighted average of a list of numbers.
# - Average {values} so that each counts as much as its weight in {weights} says.
# ? What is the mean of {values} if each element counts {weights} times?
# ? Give the average in which {weights} tells how important each of {values} is.
def weighted_average(values: list[float], weights: list[float]) -> float:
    total = 0
    for value, weight in zip(values, weights):
        total += value * weight
    return total / sum(weights)


def weighted_average(values: list[float], weights: list[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights)) / sum(weights)


assert weighted_average([1, 3], [1, 1]) == 2.0
assert weighted_average([10, 20], [3, 1]) == 12.5
assert weighted_average([7], [5]) == 7.0


# == median, find_median, median_of_list
# numbers: nums, values, items, data
# ordered: sorted_numbers, sorted_values, in_order, s
# middle: mid, half, center, m
# - Return the median of {numbers}.
# - Find the middle value of {numbers}, or the mean of the two middle values.
# - Compute the median of a list of numbers.
# - Return the value in the middle of the sorted {numbers}; average two if needed.
# - Calculate the median, which is a mean of two values if their count is even.
# ? Which value has as many of {numbers} below it as above it? Of two, take the mean.
# ? Give the central value of {numbers} once they are in order.
def median(numbers: list[float]) -> float:
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def median(numbers: list[float]) -> float:
    ordered = sorted(numbers)
    n = len(ordered)
    if n % 2 == 0:
        return (ordered[n // 2 - 1] + ordered[n // 2]) / 2
    return ordered[n // 2]


assert median([3, 1, 2]) == 2
assert median([4, 1, 3, 2]) == 2.5
assert median([7]) == 7
assert median([-1, 5]) == 2.0


# == mode, find_mode, most_common_item
# items: values, numbers, data, lst
# item: value, number, element, x
# counts: freq, frequencies, occurrences, tally
# - Return the element that occurs most often in {items}.
# - Find the mode of {items}; of several modes, the one that comes first.
# - Return the most common element of a list.
# - Find the value with the most occurrences in {items}.
# - Return the most frequent item in a list, the earliest of equally frequent ones.
# ? Which element is repeated most in the list {items}?
# ? Give the commonest value among {items}.
def mode(items: list[int]) -> int:
    return Counter(items).most_common(1)[0][0]


def mode(items: list[int]) -> int:
    counts = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return max(counts, key=counts.get)


def mode(items: list[int]) -> int:
    return max(items, key=items.count)


assert mode([1, 2, 2, 3]) == 2
assert mode([4]) == 4
assert mode([5, 6, 6, 5]) == 5


# == variance, population_variance, compute_variance
# numbers: nums, values, items, data
# mean_value: average, mu, center, m
# number: num, value, item, x
# - Return the population variance of {numbers}.
# - Compute the mean of the squared deviations of {numbers} from their mean.
# - Return the variance of {numbers}, dividing by how many they are.
# - Compute the variance of a whole population of numbers.
# - Average the squared differences between the elements of {numbers} and their mean.
# ? How far, squared, are the elements of {numbers} from their average on average?
# ? Give the variance of {numbers} with their number, not one less, as the divisor.
def variance(numbers: list[float]) -> float:
    mean_value = sum(numbers) / len(numbers)
    return sum((number - mean_value) ** 2 for number in numbers) / len(numbers)


def variance(numbers: list[float]) -> float:
    mean_value = sum(numbers) / len(numbers)
    total = 0
    for number in numbers:
        total += (number - mean_value) ** 2
    return total / len(numbers)


assert variance([1, 2, 3, 4]) == 1.25
assert variance([5, 5, 5]) == 0.0
assert variance([2, 4]) == 1.0


# == standard_deviation, std_dev, population_std
# numbers: nums, values, items, data
# mean_value: average, mu, center, m
# squares: squared, deviations, terms, parts
# number: num, value, item, x
# - Return the population standard deviation of {numbers}.
# - Compute the square root of the population variance of {numbers}.
# - Return the standard deviation of {numbers}, dividing by how many they are.
# - Compute the standard deviation of a whole population.
# - Return the root of the mean squared deviation from the mean.
# ? How much do the elements of {numbers}, a whole population, deviate from their mean?
# ? Give sigma of {numbers}: the root of their variance with their count as the divisor.
def standard_deviation(numbers: list[float]) -> float:
    mean_value = sum(numbers) / len(numbers)
    squares = sum((number - mean_value) ** 2 for number in numbers)
    return math.sqrt(squares / len(numbers))


def standard_deviation(numbers: list[float]) -> float:
    mean_value = sum(numbers) / len(numbers)
    squares = [(number - mean_value) ** 2 for number in numbers]
    return (sum(squares) / len(squares)) ** 0.5


assert standard_deviation([2, 4]) == 1.0
assert standard_deviation([5, 5, 5]) == 0.0
assert abs(standard_deviation([1, 2, 3, 4]) - 1.25**0.5) < 1e-9


# == normalize, min_max_scale, scale_to_unit
# numbers: nums, values, items, data
# low: smallest, lowest, minimum, lo
# high: largest, highest, maximum, hi
# number: num, value, item, x
# - Scale {numbers} linearly so that the smallest becomes 0 and the largest 1.
# - Return {numbers} rescaled to the range from 0 to 1.
# - Normalize a list: subtract the minimum and divide by the range.
# - Map {numbers} linearly to the interval from 0 to 1, from the minimum to the maximum.
# - Apply min-max scaling to a list of different numbers.
# ? Move and stretch {numbers} until they reach from exactly 0 to exactly 1.
# ? Give for each of {numbers} how far it is between the least (0) and the greatest (1).
def normalize(numbers: list[float]) -> list[float]:
    low = min(numbers)
    high = max(numbers)
    return [(number - low) / (high - low) for number in numbers]


assert normalize([0, 5, 10]) == [0.0, 0.5, 1.0]
assert normalize([4, 2]) == [1.0, 0.0]
assert normalize([-1, 0, 1, 3]) == [0.0, 0.25, 0.5, 1.0]


# == flatten, flatten_list, flatten_once
# lists: nested, groups, rows
# sublist: inner, group, row
# result: flat, output, items
# item: element, x, value
# - Flatten {lists}, a list of lists, into a single list.
# - Join all the lists in {lists} into one list.
# - Return a flat list with the elements of all lists in {lists}.
# - Concatenate the inner lists of a list of lists.
# - Remove one level of nesting from a list of lists.
# ? Put the elements of the lists inside {lists} into one list, in the same order.
# ? Unpack {lists} by a single level: what stands in the inner lists, one after another.
def flatten(lists: list[list[int]]) -> list[int]:
    result = []
    for sublist in lists:
        for item in sublist:
            result.append(item)
    return result


def flatten(lists: list[list[int]]) -> list[int]:
    return [item for sublist in lists for item in sublist]


def flatten(lists: list[list[int]]) -> list[int]:
    result = []
    for sublist in lists:
        result.extend(sublist)
    return result


assert flatten([[1, 2], [3], [4, 5]]) == [1, 2, 3, 4, 5]
assert flatten([[], [1], []]) == [1]
assert flatten([]) == []


# == chunk, chunk_list, split_into_chunks
# items: lst, values, numbers, data
# size: n, length, k, width
# i: start, index, pos, at
# chunks: result, parts, groups, pieces
# - Split {items} into lists of {size} elements; the last one may be shorter.
# - Split a list into chunks of length {size}, with what remains in a last chunk.
# - Return {items} cut into consecutive lists of {size} elements each.
# - Break {items} into chunks of at most {size} elements.
# - Divide a list into sublists of the given size, the last one perhaps smaller.
# ? Cut {items} after every {size} elements and return the pieces.
# ? Group the elements of {items} in order, {size} in each list, any rest in the last.
def chunk(items: list[int], size: int) -> list[list[int]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def chunk(items: list[int], size: int) -> list[list[int]]:
    chunks = []
    for i in range(0, len(items), size):
        chunks.append(items[i : i + size])
    return chunks


assert chunk([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]
assert chunk([1, 2, 3, 4], 2) == [[1, 2], [3, 4]]
assert chunk([1, 2], 5) == [[1, 2]]
assert chunk([], 3) == []


# == remove_duplicates, unique, unique_items
# items: lst, values, numbers, data
# seen: known, found, visited, used
# result: output, kept, distinct, res
# item: element, value, number, x
# - Return {items} without duplicates, in the original order.
# - Remove repeated elements from {items}, keeping the first of each.
# - Return the distinct elements of {items} in order of first appearance.
# - Remove duplicates from a list and preserve its order.
# - Keep each element of {items} only once, where it occurs first.
# ? Which different elements does {items} have? List them as they first come.
# ? Drop every element of {items} that stood earlier in it already.
def remove_duplicates(items: list[int]) -> list[int]:
    seen = set()
    result = []
    for item in items:
        if item not in seen:
            seen.add(item)
            result.append(item)
    return result


def remove_duplicates(items: list[int]) -> list[int]:
    return list(dict.fromkeys(items))


def remove_duplicates(items: list[int]) -> list[int]:
    result = []
    for item in items:
        if item not in result:
            result.append(item)
    return result


assert remove_duplicates([3, 1, 3, 2, 1]) == [3, 1, 2]
assert remove_duplicates([1, 1, 1]) == [1]
assert remove_duplicates([]) == []


# == rotate_left, rotate_list_left, left_rotate
# items: lst, values, numbers, data
# k: n, steps, count, shift
# - Return {items} rotated to the left by {k} places.
# - Rotate a list {k} places to the left; its first elements come to the end.
# - Move the first {k} elements of {items} to its end, {k} taken modulo its length.
# - Return a copy of {items} shifted cyclically to the left by {k}.
# - Rotate {items} left by {k} steps.
# ? Turn {items} like a ring: {k} times the first element goes behind the last.
# ? Shift all elements {k} places towards the front; those falling off join at the back.
def rotate_left(items: list[int], k: int) -> list[int]:
    if not items:
        return []
    k %= len(items)
    return items[k:] + items[:k]


def rotate_left(items: list[int], k: int) -> list[int]:
    return [items[(i + k) % len(items)] for i in range(len(items))]


assert rotate_left([1, 2, 3, 4, 5], 2) == [3, 4, 5, 1, 2]
assert rotate_left([1, 2, 3], 0) == [1, 2, 3]
assert rotate_left([1, 2, 3], 4) == [2, 3, 1]
assert rotate_left([], 3) == []


# == rotate_right, rotate_list_right, right_rotate
# items: lst, values, numbers, data
# k: n, steps, count, shift
# - Return {items} rotated to the right by {k} places.
# - Rotate a list {k} places to the right; its last elements come to the front.
# - Move the last {k} elements of {items} to its front, {k} taken modulo its length.
# - Return a copy of {items} shifted cyclically to the right by {k}.
# - Rotate {items} right by {k} steps.
# ? Turn {items} like a ring: {k} times the last element goes before the first.
# ? Shift all elements {k} places towards the back; those falling off join at the front.
def rotate_right(items: list[int], k: int) -> list[int]:
    if not items:
        return []
    k %= len(items)
    return items[len(items) - k :] + items[: len(items) - k]


def rotate_right(items: list[int], k: int) -> list[int]:
    return [items[(i - k) % len(items)] for i in range(len(items))]


assert rotate_right([1, 2, 3, 4, 5], 2) == [4, 5, 1, 2, 3]
assert rotate_right([1, 2, 3], 0) == [1, 2, 3]
assert rotate_right([1, 2, 3], 4) == [3, 1, 2]
assert rotate_right([], 3) == []


# == reverse_list, list_reverse, reversed_copy
# items: lst, values, numbers, data
# result: output, backwards, res, flipped
# i: index, pos, at, j
# - Return a new list with the elements of {items} in reverse order.
# - Reverse a list without changing the original.
# - Return a reversed copy of {items}.
# - Return the elements of {items} from last to first.
# - Give back {items} in reverse order, as a new list.
# ? List what is in {items}, beginning with its last element.
# ? Make a copy of {items} that runs from back to front.
def reverse_list(items: list[int]) -> list[int]:
    return items[::-1]


def reverse_list(items: list[int]) -> list[int]:
    result = []
    for i in range(len(items) - 1, -1, -1):
        result.append(items[i])
    return result


def reverse_list(items: list[int]) -> list[int]:
    return list(reversed(items))


assert reverse_list([1, 2, 3]) == [3, 2, 1]
assert reverse_list([1]) == [1]
assert reverse_list([]) == []


# == second_largest, find_second_largest, second_highest
# numbers: nums, values, items, lst
# number: num, value, item, x
# distinct: unique, different, ordered, s
# - Return the second largest distinct value of {numbers}, or None if there is none.
# - Find the largest of {numbers} that is less than the maximum; None without one.
# - Return the second highest value; equal values count once, None if there is just one.
# - Find the second largest number of a list, or None for fewer than two distinct numbers.
# - Return the greatest of {numbers} except for the maximum, None if all are equal.
# ? Which value of {numbers} is only below the top one? None if there are not two values.
# ? Give the runner-up among the different values of {numbers}, None if it does not exist.
def second_largest(numbers: list[int]) -> int | None:
    distinct = sorted(set(numbers))
    if len(distinct) < 2:
        return None
    return distinct[-2]


def second_largest(numbers: list[int]) -> int | None:
    first = second = None
    for number in numbers:
        if first is None or number > first:
            first, second = number, first
        elif number != first and (second is None or number > second):
            second = number
    return second


assert second_largest([3, 1, 4, 2]) == 3
assert second_largest([5, 5, 4]) == 4
assert second_largest([7, 7]) is None
assert second_largest([]) is None


# == running_total, cumulative_sum, prefix_sums
# numbers: nums, values, items, lst
# total: current, acc, running, s
# result: totals, sums, output, res
# number: num, value, item, x
# - Return the running totals of {numbers} as a list.
# - Compute the cumulative sums of {numbers}.
# - Return a list whose element i is the sum of {numbers} up to and including index i.
# - Return the list of the partial sums of {numbers}, from the first number on.
# - Replace every number of a list by the sum of all numbers so far.
# ? What is the sum after each of {numbers}? Return these sums in order.
# ? Add {numbers} one after another and list each sum on the way.
def running_total(numbers: list[int]) -> list[int]:
    total = 0
    result = []
    for number in numbers:
        total += number
        result.append(total)
    return result


def running_total(numbers: list[int]) -> list[int]:
    return list(accumulate(numbers))


assert running_total([1, 2, 3, 4]) == [1, 3, 6, 10]
assert running_total([5]) == [5]
assert running_total([1, -1, 2]) == [1, 0, 2]
assert running_total([]) == []


# == running_maximum, rolling_max, cumulative_max
# numbers: nums, values, items, lst
# best: current, highest, biggest, top
# result: maxima, peaks, output, res
# number: num, value, item, x
# - Return a list with the maximum of {numbers} up to and including each position.
# - Compute the running maximum of {numbers}.
# - Replace each element of {numbers} by the largest one seen so far.
# - Return for every index the greatest of {numbers} from the start to that index.
# - Compute the cumulative maximum of a list as a list of the same length.
# ? What is the record high after each of {numbers}? List these highs in order.
# ? Walk through {numbers} and write down at each step the largest until then.
def running_maximum(numbers: list[int]) -> list[int]:
    result = []
    for number in numbers:
        if not result or number > result[-1]:
            result.append(number)
        else:
            result.append(result[-1])
    return result


def running_maximum(numbers: list[int]) -> list[int]:
    return list(accumulate(numbers, max))


assert running_maximum([1, 3, 2, 5, 4]) == [1, 3, 3, 5, 5]
assert running_maximum([4, 3]) == [4, 4]
assert running_maximum([-2]) == [-2]
assert running_maximum([]) == []


# == moving_average, rolling_average, sliding_average
# numbers: nums, values, items, data
# window: size, width, k, n
# result: averages, means, output, res
# i: start, index, pos, at
# - Return the averages of every {window} consecutive elements of {numbers}.
# - Compute the moving average of {numbers} over windows of {window} elements.
# - Return a list of the means of all full windows of {window} neighbours.
# - Average each run of {window} neighbouring elements of {numbers}, from left to right.
# - Compute the simple moving averages of a list; only full windows count.
# ? Slide over {numbers} with {window} of them in view; list the mean at every step.
# ? Give the mean of the first {window} elements, then of those one place further, and so on.
def moving_average(numbers: list[float], window: int) -> list[float]:
    result = []
    for i in range(len(numbers) - window + 1):
        result.append(sum(numbers[i : i + window]) / window)
    return result


def moving_average(numbers: list[float], window: int) -> list[float]:
    return [sum(numbers[i : i + window]) / window for i in range(len(numbers) - window + 1)]


assert moving_average([1, 2, 3, 4], 2) == [1.5, 2.5, 3.5]
assert moving_average([3, 6, 9], 3) == [6.0]
assert moving_average([1, 5], 1) == [1.0, 5.0]
assert moving_average([1], 2) == []


# == sliding_windows, windows, consecutive_windows
# items: lst, values, numbers, data
# size: n, width, k, length
# result: found, parts, output, res
# i: start, index, pos, at
# - Return all lists of {size} consecutive elements of {items}, from left to right.
# - List every window of {size} neighbouring elements in {items}.
# - Return the overlapping slices of {items} that have {size} elements.
# - Slide a window of {size} elements over {items} by one place at a time; list them all.
# - Return each run of {size} neighbours in {items} as a list of lists.
# ? Which stretches of {size} elements does {items} contain? They overlap; leftmost first.
# ? Move a frame of {size} places along {items}, one at a time, and list what it shows.
def sliding_windows(items: list[int], size: int) -> list[list[int]]:
    return [items[i : i + size] for i in range(len(items) - size + 1)]


def sliding_windows(items: list[int], size: int) -> list[list[int]]:
    result = []
    for i in range(len(items) - size + 1):
        result.append(items[i : i + size])
    return result


assert sliding_windows([1, 2, 3, 4], 2) == [[1, 2], [2, 3], [3, 4]]
assert sliding_windows([1, 2, 3], 3) == [[1, 2, 3]]
assert sliding_windows([1], 2) == []


# == interleave, zip_lists, alternate_elements
# first: a, left, xs
# second: b, right, ys
# result: merged, output, mixed
# x: item_a, u, p
# y: item_b, v, q
# - Return one list that takes elements from {first} and {second} in turn.
# - Interleave two lists of equal length, beginning with {first}.
# - Alternate the elements of {first} and {second} in a single flat list.
# - Merge two equally long lists by taking an element of each in turn.
# - Return the elements of both lists alternately: a1, b1, a2, b2 and so on.
# ? Mix {first} and {second}, which are equally long, like a zipper, {first} leading.
# ? Let an element of {second} follow each element of {first}, in a single list.
def interleave(first: list[int], second: list[int]) -> list[int]:
    result = []
    for x, y in zip(first, second):
        result.append(x)
        result.append(y)
    return result


def interleave(first: list[int], second: list[int]) -> list[int]:
    return [item for pair in zip(first, second) for item in pair]


assert interleave([1, 3, 5], [2, 4, 6]) == [1, 2, 3, 4, 5, 6]
assert interleave([1], [9]) == [1, 9]
assert interleave([], []) == []


# == intersection, common_elements, find_common
# first: a, left, list1
# second: b, right, list2
# result: common, shared, output
# item: element, value, x
# - Return the elements of {first} that are also in {second}, without duplicates.
# - Find the common elements of two lists, each once, in the order of {first}.
# - Return the intersection of {first} and {second} in the order of {first}.
# - List what two lists have in common, without repeats, ordered as in {first}.
# - Return the distinct elements that occur in both lists, in the order of the first.
# ? Which elements are in both lists? Name each once, as {first} has them.
# ? Keep of {first} only what {second} has too, and nothing twice.
def intersection(first: list[int], second: list[int]) -> list[int]:
    result = []
    for item in first:
        if item in second and item not in result:
            result.append(item)
    return result


def intersection(first: list[int], second: list[int]) -> list[int]:
    return [item for item in dict.fromkeys(first) if item in second]


assert intersection([1, 2, 3, 4], [4, 2, 6]) == [2, 4]
assert intersection([1, 1, 2], [1, 1]) == [1]
assert intersection([1], [2]) == []
assert intersection([], [1]) == []


# == union, list_union, union_of_lists
# first: a, left, list1
# second: b, right, list2
# result: combined, merged, output
# item: element, value, x
# - Return the distinct elements of both lists: those of {first}, then those of {second}.
# - Return the union of {first} and {second} without duplicates, in order of appearance.
# - Combine two lists into one in which every element occurs once, in the same order.
# - Join two lists and drop repeated elements, keeping the first of each.
# - Return each element that is in {first} or {second} once, those of {first} first.
# ? Which elements do the lists have together? Name each once, in order of appearance.
# ? Append to {first} what only {second} has, and let nothing stand twice.
def union(first: list[int], second: list[int]) -> list[int]:
    result = []
    for item in first + second:
        if item not in result:
            result.append(item)
    return result


def union(first: list[int], second: list[int]) -> list[int]:
    return list(dict.fromkeys(first + second))


assert union([1, 2], [2, 3]) == [1, 2, 3]
assert union([3, 3], [1]) == [3, 1]
assert union([], [4]) == [4]
assert union([], []) == []


# == difference, list_difference, subtract_lists
# first: a, left, list1
# second: b, right, list2
# result: remaining, kept, output
# item: element, value, x
# - Return the elements of {first} that are not in {second}.
# - Remove from {first} everything that occurs in {second}, and return the rest as a list.
# - Return the difference of two lists, in the order of {first}.
# - List those elements of {first} which {second} does not contain.
# - Return what remains of the first list without the elements of the second.
# ? Which elements does {first} have that {second} lacks?
# ? Take away all of {second} from {first}; give the others in the same order.
def difference(first: list[int], second: list[int]) -> list[int]:
    return [item for item in first if item not in second]


def difference(first: list[int], second: list[int]) -> list[int]:
    result = []
    for item in first:
        if item not in second:
            result.append(item)
    return result


assert difference([1, 2, 3, 4], [2, 4]) == [1, 3]
assert difference([1, 2], []) == [1, 2]
assert difference([1], [1]) == []
assert difference([], [1]) == []


# == partition, split_by, partition_by
# items: lst, values, numbers, data
# predicate: condition, test, func, is_wanted
# yes: matching, passed, accepted, kept
# no: others, failed, rejected, dropped
# item: element, value, number, x
# - Return two lists: the elements of {items} that satisfy {predicate}, and the others.
# - Split {items} into those for which {predicate} is true and those for which it is not.
# - Partition a list by a function; return a pair of lists, the accepted elements first.
# - Divide {items} into a list that passes {predicate} and a list that fails it.
# - Return a tuple of the elements that fulfil a condition and those that do not.
# ? Sort out {items}: first what {predicate} accepts, in a second list the rest.
# ? Give a pair of lists: what in {items} makes {predicate} true, and what makes it false.
def partition(items: list, predicate: Callable) -> tuple[list, list]:
    yes = []
    no = []
    for item in items:
        if predicate(item):
            yes.append(item)
        else:
            no.append(item)
    return yes, no


def partition(items: list, predicate: Callable) -> tuple[list, list]:
    yes = [item for item in items if predicate(item)]
    no = [item for item in items if not predicate(item)]
    return yes, no


assert partition([1, 2, 3, 4], lambda x: x % 2 == 0) == ([2, 4], [1, 3])
assert partition([5, -1], lambda x: x > 0) == ([5], [-1])
assert partition([], lambda x: True) == ([], [])


# == count_occurrences, count_value, count_in_list
# items: lst, values, numbers, data
# target: wanted, needle, x, sought
# count: total, result, counter, n
# item: element, value, number, current
# - Return how many elements of {items} are equal to {target}.
# - Count the occurrences of {target} in {items}.
# - Count how often {target} appears in a list.
# - Return the number of times that {target} occurs in {items}.
# - Count the elements of a list that equal a given value.
# ? How many times does {items} contain {target}?
# ? Give the number of elements in the list {items} which are {target}.
def count_occurrences(items: list[int], target: int) -> int:
    count = 0
    for item in items:
        if item == target:
            count += 1
    return count


def count_occurrences(items: list[int], target: int) -> int:
    return items.count(target)


def count_occurrences(items: list[int], target: int) -> int:
    return sum(1 for item in items if item == target)


assert count_occurrences([1, 2, 1, 3, 1], 1) == 3
assert count_occurrences([1, 2], 5) == 0
assert count_occurrences([], 1) == 0


# ==! index_of_max, argmax
# numbers: nums, values, items, lst
# best: index, top, position, result
# i: j, at, pos, k
# - Return the index of the largest of {numbers}, the first one if there are several.
# - Find the first position of the maximum in {numbers}.
# - Return the index at which {numbers} has its largest value; of several, the lowest.
# - Find where the greatest element of a list is; of equal ones, the first counts.
# - Return the first index of the maximum of a list.
# ? At which index does the highest of {numbers} stand for the first time?
# ? Give the position of the top value in {numbers}, the leftmost of equals.
def index_of_max(numbers: list[int]) -> int:
    best = 0
    for i in range(1, len(numbers)):
        if numbers[i] > numbers[best]:
            best = i
    return best


def index_of_max(numbers: list[int]) -> int:
    return numbers.index(max(numbers))


assert index_of_max([3, 9, 2]) == 1
assert index_of_max([5, 7, 7]) == 1
assert index_of_max([-3]) == 0
assert index_of_max([4, 3, 2]) == 0


# == all_equal, all_same, are_all_equal
# items: lst, values, numbers, data
# item: element, value, number, x
# - Return True if all elements of {items} are equal.
# - Check whether all elements of a list are the same; an empty list passes.
# - Return whether {items} contains no two different elements.
# - Check if every element of {items} equals the first one.
# - Test if a list consists of copies of one value only.
# ? Are the elements of {items} all alike?
# ? Say whether nothing in {items} differs from anything else in it.
def all_equal(items: list[int]) -> bool:
    return len(set(items)) <= 1


def all_equal(items: list[int]) -> bool:
    for item in items:
        if item != items[0]:
            return False
    return True


def all_equal(items: list[int]) -> bool:
    return all(item == items[0] for item in items)


assert all_equal([2, 2, 2])
assert not all_equal([1, 1, 2])
assert all_equal([7])
assert all_equal([])


# == has_duplicates, contains_duplicate, has_repeats
# items: lst, values, numbers, data
# seen: known, found, visited, used
# item: element, value, number, x
# - Return True if some element occurs more than once in {items}.
# - Check whether {items} contains duplicates.
# - Check if any value appears at least twice in a list.
# - Return whether {items} has repeated elements.
# - Determine if a list has two equal elements.
# ? Is there anything in {items} that stands there twice or more?
# ? Say whether the elements of {items} are not all different.
def has_duplicates(items: list[int]) -> bool:
    return len(set(items)) < len(items)


def has_duplicates(items: list[int]) -> bool:
    seen = set()
    for item in items:
        if item in seen:
            return True
        seen.add(item)
    return False


assert has_duplicates([1, 2, 3, 1])
assert not has_duplicates([1, 2, 3])
assert not has_duplicates([])
assert has_duplicates([0, 0])


# == is_subset, contains_all, all_elements_in
# first: small, part, a
# second: large, whole, b
# item: element, value, x
# - Return True if every element of {first} is also in {second}.
# - Check whether {first} is a subset of {second}.
# - Check if the second list contains all elements of the first one.
# - Return whether no element of {first} is missing in {second}.
# - Test if all elements of {first} occur in {second}; how often does not matter.
# ? Does {second} have everything that {first} has?
# ? Say whether nothing in {first} is absent from {second}.
def is_subset(first: list[int], second: list[int]) -> bool:
    return set(first) <= set(second)


def is_subset(first: list[int], second: list[int]) -> bool:
    return all(item in second for item in first)


def is_subset(first: list[int], second: list[int]) -> bool:
    for item in first:
        if item not in second:
            return False
    return True


assert is_subset([1, 2], [3, 2, 1])
assert not is_subset([1, 4], [1, 2, 3])
assert is_subset([], [1])
assert not is_subset([1], [])


# == all_pairs, pairs, list_pairs
# items: lst, values, numbers, data
# result: found, output, res, collected
# - Return all pairs of elements of {items} as tuples, the earlier element first.
# - List every pair of two elements at different places of {items}, in order.
# - Return a list of tuples for all ways to choose two elements of {items}, in order.
# - Generate all pairs (x, y) in which x stands before y in {items}.
# - Return every combination of two elements of a list as tuples, in order.
# ? Combine each element of {items} with all those behind it, in tuples.
# ? Which pairs can be taken from {items} without changing the order? List the tuples.
def all_pairs(items: list[int]) -> list[tuple[int, int]]:
    result = []
    for i in range(len(items)):
        for j in range(i + 1, len(items)):
            result.append((items[i], items[j]))
    return result


def all_pairs(items: list[int]) -> list[tuple[int, int]]:
    return [(x, y) for i, x in enumerate(items) for y in items[i + 1 :]]


assert all_pairs([1, 2, 3]) == [(1, 2), (1, 3), (2, 3)]
assert all_pairs([5, 4]) == [(5, 4)]
assert all_pairs([1]) == []
assert all_pairs([]) == []


# == pairs_with_sum, find_pairs_with_sum, pairs_that_sum_to
# numbers: nums, values, items, lst
# target: total, goal, wanted, k
# result: found, output, res, matches
# - Return all pairs of {numbers} that add up to {target}, as tuples in order.
# - Find each pair of elements at different places whose sum is {target}; list tuples.
# - List all pairs (x, y), x before y in {numbers}, with the sum {target}.
# - Return the pairs of {numbers} whose sum equals {target}, by their first element's place.
# - Find all pairs in a list with the given sum, the earlier element of each first.
# ? Which two of {numbers} make {target} together? List all such tuples in order.
# ? Collect the pairs from {numbers} that give {target}, in the order of the list.
def pairs_with_sum(numbers: list[int], target: int) -> list[tuple[int, int]]:
    result = []
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            if numbers[i] + numbers[j] == target:
                result.append((numbers[i], numbers[j]))
    return result


def pairs_with_sum(numbers: list[int], target: int) -> list[tuple[int, int]]:
    return [(x, y) for i, x in enumerate(numbers) for y in numbers[i + 1 :] if x + y == target]


assert pairs_with_sum([1, 2, 3, 4], 5) == [(1, 4), (2, 3)]
assert pairs_with_sum([5, -5, 2], 0) == [(5, -5)]
assert pairs_with_sum([1, 2], 10) == []
assert pairs_with_sum([], 1) == []


# ==! pairwise_differences, successive_differences
# numbers: nums, values, items, lst
# result: output, steps, gaps, deltas
# i: index, pos, at, k
# - Return the differences of neighbours in {numbers}, each minus the one before it.
# - Compute how much each of {numbers} exceeds its predecessor, as a list.
# - List the differences of consecutive elements: the later one minus the earlier one.
# - Return a list of the steps from each of {numbers} to the next.
# - Subtract from every element but the first the element before it.
# ? By how much does each of {numbers} exceed the one before it? Return a list.
# ? Give the step between each two successive elements of {numbers}, rises being positive.
def pairwise_differences(numbers: list[int]) -> list[int]:
    return [numbers[i + 1] - numbers[i] for i in range(len(numbers) - 1)]


def pairwise_differences(numbers: list[int]) -> list[int]:
    result = []
    for i in range(1, len(numbers)):
        result.append(numbers[i] - numbers[i - 1])
    return result


assert pairwise_differences([1, 4, 9, 16]) == [3, 5, 7]
assert pairwise_differences([5, 3]) == [-2]
assert pairwise_differences([1]) == []
assert pairwise_differences([]) == []


# == group_consecutive, group_runs, group_equal_neighbors
# items: lst, values, numbers, data
# groups: runs, result, output, blocks
# item: element, value, number, x
# - Group equal neighbouring elements of {items} into lists.
# - Split {items} into runs of equal elements, as a list of lists.
# - Return the runs of equal consecutive elements in {items}.
# - Put each stretch of equal elements of {items} into a list of its own.
# - Group a list by equal consecutive values: [1, 1, 2] gives [[1, 1], [2]].
# ? Cut {items} wherever an element differs from the one before; list the parts.
# ? Turn [5, 5, 7] into [[5, 5], [7]], and any other list alike.
def group_consecutive(items: list[int]) -> list[list[int]]:
    groups = []
    for item in items:
        if groups and groups[-1][-1] == item:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def group_consecutive(items: list[int]) -> list[list[int]]:
    return [list(group) for _, group in groupby(items)]


assert group_consecutive([1, 1, 2, 3, 3, 3]) == [[1, 1], [2], [3, 3, 3]]
assert group_consecutive([1, 2, 1]) == [[1], [2], [1]]
assert group_consecutive([]) == []


# == remove_value, remove_all, without_value
# items: lst, values, numbers, data
# target: unwanted, x, excluded, needle
# item: element, value, number, current
# result: kept, output, res, remaining
# - Return {items} without the elements that are equal to {target}.
# - Remove every occurrence of {target} from {items} and return a new list.
# - Return a copy of {items} from which all elements equal to {target} are removed.
# - Keep all elements of {items} that differ from {target}.
# - Remove a value from a list wherever it occurs.
# ? What is left of {items} when each {target} is taken out?
# ? Copy {items}, but skip every {target} in it.
def remove_value(items: list[int], target: int) -> list[int]:
    return [item for item in items if item != target]


def remove_value(items: list[int], target: int) -> list[int]:
    result = []
    for item in items:
        if item != target:
            result.append(item)
    return result


assert remove_value([1, 2, 1, 3], 1) == [2, 3]
assert remove_value([1, 2], 5) == [1, 2]
assert remove_value([4, 4], 4) == []
assert remove_value([], 1) == []


# == remove_none, without_none
# items: lst, values, numbers, data
# item: element, value, number, x
# result: kept, output, res, remaining
# - Return {items} without the elements that are None.
# - Remove every None from {items}; zeros and empty strings stay.
# - Return a new list with all elements of {items} but None.
# - Drop the None values of a list and keep everything else.
# - Filter None out of {items}.
# ? What is left of {items} when each None is taken out, but nothing else?
# ? Keep those elements of {items} that are not None.
def remove_none(items: list[int | None]) -> list[int]:
    return [item for item in items if item is not None]


def remove_none(items: list[int | None]) -> list[int]:
    result = []
    for item in items:
        if item is not None:
            result.append(item)
    return result


assert remove_none([1, None, 2, None]) == [1, 2]
assert remove_none([0, None, ""]) == [0, ""]
assert remove_none([None]) == []
assert remove_none([]) == []


# == take, first_elements
# items: lst, values, numbers, data
# n: k, count, amount, size
# - Return the first {n} elements of {items}, or all if there are fewer.
# - Take {n} elements from the start of {items}.
# - Return a list of the first {n} elements.
# - Keep only the first {n} elements of {items}.
# - Return at most {n} elements from the beginning of a list.
# ? With which {n} elements does {items} begin?
# ? Cut {items} off behind its first {n} elements.
def take(items: list[int], n: int) -> list[int]:
    return items[:n]


assert take([1, 2, 3, 4], 2) == [1, 2]
assert take([1, 2], 5) == [1, 2]
assert take([1, 2], 0) == []
assert take([], 3) == []


# == drop, skip_first, without_first
# items: lst, values, numbers, data
# n: k, count, amount, size
# - Return {items} without its first {n} elements.
# - Drop {n} elements from the start of {items} and return the rest.
# - Return what follows the first {n} elements of a list.
# - Skip the first {n} elements of {items}.
# - Return all elements of {items} but the first {n}.
# ? What remains when {n} elements are taken away at the beginning of {items}?
# ? Let the list begin only behind its first {n} elements.
def drop(items: list[int], n: int) -> list[int]:
    return items[n:]


assert drop([1, 2, 3, 4], 2) == [3, 4]
assert drop([1, 2], 5) == []
assert drop([1, 2], 0) == [1, 2]
assert drop([], 3) == []


# == last_elements, last_n, take_last
# items: lst, values, numbers, data
# n: k, count, amount, size
# - Return the last {n} elements of {items}, or all if there are fewer.
# - Take {n} elements from the back of {items}, in their order.
# - Return a list of the last {n} elements.
# - Keep only the last {n} elements of {items}; for 0, none.
# - Return at most {n} elements from the tail of a list.
# ? With which {n} elements does {items} finish?
# ? Leave away all but the final {n} elements of {items}.
def last_elements(items: list[int], n: int) -> list[int]:
    return items[-n:] if n > 0 else []


def last_elements(items: list[int], n: int) -> list[int]:
    if n == 0:
        return []
    return items[-n:]


assert last_elements([1, 2, 3, 4], 2) == [3, 4]
assert last_elements([1, 2], 5) == [1, 2]
assert last_elements([1, 2], 0) == []
assert last_elements([], 3) == []


# == every_nth, take_every_nth, every_nth_element
# items: lst, values, numbers, data
# n: k, step, interval, stride
# - Return every {n}-th element of {items}, beginning with the first one.
# - Take the first element of {items} and then every {n}-th one after it.
# - Return the elements of {items} at the indices 0, {n}, twice {n} and so on.
# - Return each element of {items} whose index is a multiple of {n}.
# - Pick every {n}-th element of a list, from index 0 on.
# ? Walk along {items} in steps of {n}, from the first element; list where you tread.
# ? Thin out {items}: keep what stands at index 0 and at the multiples of {n}.
def every_nth(items: list[int], n: int) -> list[int]:
    return items[::n]


def every_nth(items: list[int], n: int) -> list[int]:
    return [items[i] for i in range(0, len(items), n)]


assert every_nth([1, 2, 3, 4, 5], 2) == [1, 3, 5]
assert every_nth([1, 2, 3], 1) == [1, 2, 3]
assert every_nth([1, 2, 3], 5) == [1]
assert every_nth([], 2) == []


# == split_even_odd, evens_and_odds, separate_even_odd
# numbers: nums, values, items, lst
# evens: even, even_numbers, even_values, e
# odds: odd, odd_numbers, odd_values, o
# number: num, value, item, x
# - Return two lists: the even and the odd elements of {numbers}.
# - Split {numbers} into even and odd ones; return a pair of lists, the even ones first.
# - Separate the even from the odd elements; return both lists, even ones first.
# - Return a tuple of the even numbers and the odd numbers of a list.
# - Divide {numbers} into a list of even ones and a list of odd ones.
# ? Which of {numbers} can be halved, and which cannot? Return two lists in a tuple.
# ? Sort {numbers} into two lists by parity, the list of even ones first.
def split_even_odd(numbers: list[int]) -> tuple[list[int], list[int]]:
    evens = []
    odds = []
    for number in numbers:
        if number % 2 == 0:
            evens.append(number)
        else:
            odds.append(number)
    return evens, odds


def split_even_odd(numbers: list[int]) -> tuple[list[int], list[int]]:
    evens = [number for number in numbers if number % 2 == 0]
    odds = [number for number in numbers if number % 2 != 0]
    return evens, odds


assert split_even_odd([1, 2, 3, 4, 5]) == ([2, 4], [1, 3, 5])
assert split_even_odd([2, 0]) == ([2, 0], [])
assert split_even_odd([-1]) == ([], [-1])
assert split_even_odd([]) == ([], [])


# == filter_even, get_even_numbers, keep_even
# numbers: nums, values, items, lst
# number: num, value, item, x
# result: found, output, res, kept
# - Return the even elements of {numbers}.
# - Return a list of those elements of {numbers} that are even, in the same order.
# - Keep only what is even in {numbers}.
# - Filter a list so that only its even numbers remain.
# - Find all even numbers in {numbers}.
# ? Which of {numbers} are divisible by two?
# ? Leave out the odd ones of {numbers}.
def filter_even(numbers: list[int]) -> list[int]:
    return [number for number in numbers if number % 2 == 0]


def filter_even(numbers: list[int]) -> list[int]:
    result = []
    for number in numbers:
        if number % 2 == 0:
            result.append(number)
    return result


def filter_even(numbers: list[int]) -> list[int]:
    return list(filter(lambda number: number % 2 == 0, numbers))


assert filter_even([1, 2, 3, 4]) == [2, 4]
assert filter_even([0, -2, 5]) == [0, -2]
assert filter_even([1, 3]) == []
assert filter_even([]) == []


# == filter_positive, positive_numbers, keep_positive
# numbers: nums, values, items, lst
# number: num, value, item, x
# result: found, output, res, kept
# - Return the positive elements of {numbers}.
# - Return a list of the elements of {numbers} that are greater than 0, in the same order.
# - Keep only what is positive in {numbers}; 0 is not positive.
# - Filter a list so that only numbers above zero remain.
# - Find all positive numbers in {numbers}.
# ? Which of {numbers} lie above zero?
# ? Leave out zeros and negative ones of {numbers}.
def filter_positive(numbers: list[int]) -> list[int]:
    return [number for number in numbers if number > 0]


def filter_positive(numbers: list[int]) -> list[int]:
    result = []
    for number in numbers:
        if number > 0:
            result.append(number)
    return result


assert filter_positive([3, -1, 0, 5]) == [3, 5]
assert filter_positive([-1, -2]) == []
assert filter_positive([]) == []


# == count_even_numbers, how_many_even, number_of_evens
# numbers: nums, values, items, lst
# number: num, value, item, x
# count: total, counter, result, n
# - Return how many of {numbers} are even.
# - Count the even elements of {numbers}.
# - Return the number of even elements in {numbers}.
# - Count the elements of {numbers} that are divisible by 2.
# - Count how many even numbers a list has.
# ? How many of {numbers} can be halved without a remainder?
# ? Give the number of elements of {numbers} that are not odd.
def count_even_numbers(numbers: list[int]) -> int:
    count = 0
    for number in numbers:
        if number % 2 == 0:
            count += 1
    return count


def count_even_numbers(numbers: list[int]) -> int:
    return sum(1 for number in numbers if number % 2 == 0)


assert count_even_numbers([1, 2, 3, 4]) == 2
assert count_even_numbers([0]) == 1
assert count_even_numbers([1, -3]) == 0
assert count_even_numbers([]) == 0


# == sum_even, sum_of_evens, sum_even_numbers
# numbers: nums, values, items, lst
# number: num, value, item, x
# total: result, even_sum, s, acc
# - Return the sum of the even elements of {numbers}.
# - Add up all even numbers in {numbers}.
# - Sum only those elements of {numbers} that are even.
# - Return the sum of the even numbers in a list, 0 if there are none.
# - Compute the total of all elements of {numbers} that are divisible by 2.
# ? What do the even ones of {numbers} make together?
# ? Leave out the odd ones of {numbers} and add the others.
def sum_even(numbers: list[int]) -> int:
    total = 0
    for number in numbers:
        if number % 2 == 0:
            total += number
    return total


def sum_even(numbers: list[int]) -> int:
    return sum(number for number in numbers if number % 2 == 0)


assert sum_even([1, 2, 3, 4]) == 6
assert sum_even([1, 3]) == 0
assert sum_even([-2, 2, 8]) == 8
assert sum_even([]) == 0


# == square_all, squares, square_list
# numbers: nums, values, items, lst
# number: num, value, item, x
# result: squared, output, res, out
# - Return a list of the squares of {numbers}.
# - Square every element of {numbers}.
# - Return a new list in which each of {numbers} is squared.
# - Multiply each of {numbers} by itself and return the list.
# - Return the square of every number in a list.
# ? What are the second powers of {numbers}? Return them in order.
# ? Replace each of {numbers} by its product with itself, in a new list.
def square_all(numbers: list[int]) -> list[int]:
    return [number**2 for number in numbers]


def square_all(numbers: list[int]) -> list[int]:
    result = []
    for number in numbers:
        result.append(number * number)
    return result


def square_all(numbers: list[int]) -> list[int]:
    return list(map(lambda number: number**2, numbers))


assert square_all([1, 2, 3]) == [1, 4, 9]
assert square_all([-4, 0]) == [16, 0]
assert square_all([]) == []


# == scale_list, multiply_all_by, multiply_each
# numbers: nums, values, items, lst
# factor: multiplier, scale, k, m
# number: num, value, item, x
# result: scaled, output, res, out
# - Return a list of {numbers}, each multiplied by {factor}.
# - Multiply every element of {numbers} by {factor}.
# - Return a new list in which each of {numbers} is {factor} times as large.
# - Scale all elements of {numbers} by {factor}.
# - Multiply each number of a list by the same factor.
# ? Make every one of {numbers} {factor} times what it is, in a new list.
# ? Apply the factor {factor} to all of {numbers} and return the products.
def scale_list(numbers: list[float], factor: float) -> list[float]:
    return [number * factor for number in numbers]


def scale_list(numbers: list[float], factor: float) -> list[float]:
    result = []
    for number in numbers:
        result.append(number * factor)
    return result


assert scale_list([1, 2, 3], 2) == [2, 4, 6]
assert scale_list([5, -1], 0) == [0, 0]
assert scale_list([], 3) == []


# == dot_product, inner_product, scalar_product
# first: a, v, xs
# second: b, w, ys
# total: result, product_sum, s
# x: p, left, u
# y: q, right, t
# - Return the dot product of {first} and {second}.
# - Compute the scalar product of two vectors of equal length.
# - Multiply the elements of two lists in pairs and return the sum of the products.
# - Return the sum of products of the elements of {first} and {second} at each index.
# - Compute the inner product of two lists of numbers.
# ? Multiply {first} and {second} element by element, and add what you get.
# ? Give the scalar that results from multiplying the vectors {first} and {second}.
def dot_product(first: list[float], second: list[float]) -> float:
    return sum(x * y for x, y in zip(first, second))


def dot_product(first: list[float], second: list[float]) -> float:
    total = 0
    for i in range(len(first)):
        total += first[i] * second[i]
    return total


assert dot_product([1, 2, 3], [4, 5, 6]) == 32
assert dot_product([2], [-3]) == -6
assert dot_product([], []) == 0


# == add_lists, add_elementwise, vector_add
# first: a, v, xs
# second: b, w, ys
# x: p, left, u
# y: q, right, t
# - Return a list of the sums of the elements of {first} and {second} at each index.
# - Add two lists of equal length element by element.
# - Return the elementwise sum of {first} and {second}.
# - Add two vectors, given as lists of equal length.
# - Add each element of {second} to the element of {first} at the same index.
# ? What is the vector sum of {first} and {second}?
# ? Pair the elements of {first} and {second} and return the list of the pairs' sums.
def add_lists(first: list[float], second: list[float]) -> list[float]:
    return [x + y for x, y in zip(first, second)]


def add_lists(first: list[float], second: list[float]) -> list[float]:
    return [first[i] + second[i] for i in range(len(first))]


assert add_lists([1, 2, 3], [10, 20, 30]) == [11, 22, 33]
assert add_lists([1], [-1]) == [0]
assert add_lists([], []) == []


# == max_difference, value_range, spread
# numbers: nums, values, items, data
# low: smallest, lowest, minimum, lo
# high: largest, highest, maximum, hi
# - Return the difference between the largest and the smallest of {numbers}.
# - Compute how far the maximum of {numbers} is above the minimum.
# - Return the largest difference between any two of {numbers}, in whatever order.
# - Subtract the smallest from the largest value of a list.
# - Return the range of {numbers}, that is, maximum minus minimum.
# ? How far are the least and the greatest of {numbers} apart?
# ? Give the width of the interval that {numbers} cover.
def max_difference(numbers: list[int]) -> int:
    return max(numbers) - min(numbers)


def max_difference(numbers: list[int]) -> int:
    low = high = numbers[0]
    for number in numbers:
        low = min(low, number)
        high = max(high, number)
    return high - low


assert max_difference([3, 9, 1, 5]) == 8
assert max_difference([9, 1]) == 8
assert max_difference([4]) == 0
assert max_difference([-3, 3]) == 6


# == longest_increasing_run, longest_rising_run, longest_increasing_streak
# numbers: nums, values, items, lst
# longest: best, result, max_length, record
# current: run, length, streak, count
# i: index, pos, at, k
# - Return the length of the longest run of strictly increasing neighbours in {numbers}.
# - Find how long the longest strictly increasing stretch of consecutive elements is.
# - Return the length of the longest contiguous part of {numbers} that strictly rises.
# - Count the elements of the longest strictly increasing contiguous run in {numbers}.
# - Compute the length of the longest streak of ever larger neighbouring numbers.
# ? How many neighbours in a row of {numbers} grow at most, each above the one before?
# ? Give the length of the longest slice of {numbers} in which every step goes up.
def longest_increasing_run(numbers: list[int]) -> int:
    longest = 0
    current = 0
    for i in range(len(numbers)):
        if i > 0 and numbers[i] > numbers[i - 1]:
            current += 1
        else:
            current = 1
        longest = max(longest, current)
    return longest


def longest_increasing_run(numbers: list[int]) -> int:
    if not numbers:
        return 0
    longest = current = 1
    for previous, number in pairwise(numbers):
        current = current + 1 if number > previous else 1
        longest = max(longest, current)
    return longest


assert longest_increasing_run([1, 2, 3, 1, 2]) == 3
assert longest_increasing_run([5, 4, 3]) == 1
assert longest_increasing_run([1, 1, 2]) == 2
assert longest_increasing_run([]) == 0


# ==! move_zeros, move_zeros_to_end, shift_zeros
# numbers: nums, values, items, lst
# number: num, value, item, x
# others: nonzero, result, kept, rest
# - Return {numbers} with all zeros moved to the end, the others in their order.
# - Move every 0 of {numbers} behind the other elements; return a new list.
# - Return a list of the nonzero elements of {numbers}, in order, and then the zeros.
# - Put all zeros of a list at its end without changing the order of the rest.
# - Return a copy of {numbers} in which the zeros come last.
# ? Let the elements other than 0 keep their order and all the zeros follow them.
# ? Push the zeros of {numbers} to the back, and return the resulting list.
def move_zeros(numbers: list[int]) -> list[int]:
    others = [number for number in numbers if number != 0]
    return others + [0] * (len(numbers) - len(others))


def move_zeros(numbers: list[int]) -> list[int]:
    others = []
    zeros = []
    for number in numbers:
        if number == 0:
            zeros.append(number)
        else:
            others.append(number)
    return others + zeros


assert move_zeros([0, 1, 0, 3, 12]) == [1, 3, 12, 0, 0]
assert move_zeros([1, 2]) == [1, 2]
assert move_zeros([0, 0]) == [0, 0]
assert move_zeros([]) == []


# == product_except_self, products_of_others, product_of_others
# numbers: nums, values, items, lst
# result: products, output, res, out
# - Return a list with the product of all elements but the one at each index.
# - Compute for every index of {numbers} the product of the other elements.
# - Return for each element of {numbers} the product of all the others.
# - For each position multiply all elements of {numbers} except for the one standing there.
# - Return the products of a list without the element at each position.
# ? What is the product of {numbers} when each element in turn is left out? Give a list.
# ? Replace every element of {numbers} by the product of the rest of the list.
def product_except_self(numbers: list[int]) -> list[int]:
    result = [1] * len(numbers)
    prefix = 1
    for i in range(len(numbers)):
        result[i] = prefix
        prefix *= numbers[i]
    suffix = 1
    for i in range(len(numbers) - 1, -1, -1):
        result[i] *= suffix
        suffix *= numbers[i]
    return result


def product_except_self(numbers: list[int]) -> list[int]:
    result = []
    for i in range(len(numbers)):
        result.append(math.prod(numbers[:i]) * math.prod(numbers[i + 1 :]))
    return result


def product_except_self(numbers: list[int]) -> list[int]:
    result = []
    for i in range(len(numbers)):
        product = 1
        for j in range(len(numbers)):
            if i != j:
                product *= numbers[j]
        result.append(product)
    return result


assert product_except_self([1, 2, 3, 4]) == [24, 12, 8, 6]
assert product_except_self([2, 0, 5]) == [0, 10, 0]
assert product_except_self([3, 7]) == [7, 3]


# == merge_intervals, merge_overlapping, merge_overlapping_intervals
# intervals: ranges, spans, segments
# merged: result, output, combined
# start: low, begin, lo
# stop: high, finish, hi
# - Merge the overlapping or touching ones of {intervals}; return them sorted.
# - Merge {intervals}, given as lists [start, end], wherever they overlap or touch.
# - Return the sorted union of {intervals}, with overlapping ones joined into one.
# - Combine overlapping intervals [start, end] and return a sorted list of intervals.
# - Join those of {intervals} that share a point, and return all of them sorted.
# ? Which separate [start, end] lists cover the same as {intervals}? Sort them.
# ? Unite what has a point in common in {intervals}; list the results in order.
def merge_intervals(intervals: list[list[int]]) -> list[list[int]]:
    merged = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return merged


assert merge_intervals([[1, 3], [2, 6], [8, 10]]) == [[1, 6], [8, 10]]
assert merge_intervals([[5, 6], [1, 2]]) == [[1, 2], [5, 6]]
assert merge_intervals([[1, 4], [4, 5]]) == [[1, 5]]
assert merge_intervals([[1, 9], [2, 3]]) == [[1, 9]]
assert merge_intervals([]) == []


# == max_profit, best_profit, stock_profit
# prices: values, quotes, stock_prices
# lowest: cheapest, min_price, low
# best: profit, result, gain
# price: value, quote, current
# - Return the largest profit from buying once and selling later, or 0 if there is none.
# - Find the best profit of one purchase and one later sale, given {prices}, or 0.
# - Compute the most one can earn by one trade: buy at one price, sell at a later one.
# - Return the greatest rise from an earlier to a later one of {prices}, at least 0.
# - Find the highest possible gain from {prices} with a single buy and sell; 0 without one.
# ? What can be earned at most, buying at one of {prices} and selling afterwards? Maybe 0.
# ? By how much does a later price exceed an earlier one at most? If never, return 0.
def max_profit(prices: list[int]) -> int:
    if not prices:
        return 0
    lowest = prices[0]
    best = 0
    for price in prices:
        lowest = min(lowest, price)
        best = max(best, price - lowest)
    return best


def max_profit(prices: list[int]) -> int:
    best = 0
    for i in range(len(prices)):
        for j in range(i + 1, len(prices)):
            best = max(best, prices[j] - prices[i])
    return best


assert max_profit([7, 1, 5, 3, 6, 4]) == 5
assert max_profit([7, 6, 4, 3]) == 0
assert max_profit([1, 2]) == 1
assert max_profit([]) == 0


# == swap_first_last, swap_ends, exchange_first_and_last
# items: lst, values, numbers, data
# result: swapped, output, res, copied
# - Return a copy of {items} with its first and last element exchanged.
# - Swap the first and the last element of {items}, in a new list.
# - Return a list like {items} in which the first and the last element change places.
# - Exchange the two end elements of a list; fewer than two elements stay as they are.
# - Return {items} with its ends swapped.
# ? Let the last element of {items} come first and the first one last; keep the others.
# ? Make a copy of {items} whose outer elements have traded places.
def swap_first_last(items: list[int]) -> list[int]:
    result = items[:]
    if len(result) > 1:
        result[0], result[-1] = result[-1], result[0]
    return result


def swap_first_last(items: list[int]) -> list[int]:
    if len(items) < 2:
        return items[:]
    return [items[-1], *items[1:-1], items[0]]


assert swap_first_last([1, 2, 3, 4]) == [4, 2, 3, 1]
assert swap_first_last([1, 2]) == [2, 1]
assert swap_first_last([1]) == [1]
assert swap_first_last([]) == []


# == numbers_above_average, above_average, greater_than_average
# numbers: nums, values, items, data
# mean_value: average_value, mu, center, m
# number: num, value, item, x
# result: found, output, res, kept
# - Return those elements of {numbers} that are greater than their average, in order.
# - List the elements of {numbers} above the mean of all of them.
# - Find all elements of {numbers} that exceed the average of the list.
# - Keep only the elements that are larger than the mean of the list.
# - Return the numbers of a non-empty list that lie above its average.
# ? Which of {numbers} are higher than their mean?
# ? Leave out each of {numbers} that does not surpass the average of all.
def numbers_above_average(numbers: list[float]) -> list[float]:
    mean_value = sum(numbers) / len(numbers)
    return [number for number in numbers if number > mean_value]


def numbers_above_average(numbers: list[float]) -> list[float]:
    mean_value = sum(numbers) / len(numbers)
    result = []
    for number in numbers:
        if number > mean_value:
            result.append(number)
    return result


assert numbers_above_average([1, 2, 3, 6]) == [6]
assert numbers_above_average([4, 4]) == []
assert numbers_above_average([-5, 5, 3]) == [5, 3]


# == split_at, split_list_at, cut_at
# items: lst, values, numbers, data
# index: position, i, at, k
# - Return two lists: {items} before {index}, and {items} from {index} on.
# - Split {items} at {index} into a pair of lists.
# - Return a tuple of the first {index} elements of {items} and the remaining ones.
# - Cut a list in two, so that the element at {index} begins the second part.
# - Divide {items} into what stands before {index} and what follows from there.
# ? Break {items} in two behind its first {index} elements, and return a tuple.
# ? Give a pair: the beginning of {items} with {index} elements, and the rest.
def split_at(items: list[int], index: int) -> tuple[list[int], list[int]]:
    return items[:index], items[index:]


assert split_at([1, 2, 3, 4], 1) == ([1], [2, 3, 4])
assert split_at([1, 2], 0) == ([], [1, 2])
assert split_at([1, 2], 2) == ([1, 2], [])
assert split_at([], 1) == ([], [])


# == zip_to_pairs, pair_up, make_pairs
# first: a, left, xs
# second: b, right, ys
# - Return a list of tuples that pair the elements of {first} and {second} by index.
# - Pair the elements of two lists; the longer list is cut to the length of the shorter.
# - Combine {first} and {second} into a list of pairs, as far as both of them reach.
# - Return the pairs (x, y) of elements of two lists at the same index.
# - Zip two lists into a list of tuples.
# ? Put each element of {first} in a tuple with its partner in {second}, if it has one.
# ? Walk along both lists together and list the tuples of what stands side by side.
def zip_to_pairs(first: list[int], second: list[str]) -> list[tuple[int, str]]:
    return list(zip(first, second))


def zip_to_pairs(first: list[int], second: list[str]) -> list[tuple[int, str]]:
    return [(first[i], second[i]) for i in range(min(len(first), len(second)))]


assert zip_to_pairs([1, 2], ["a", "b"]) == [(1, "a"), (2, "b")]
assert zip_to_pairs([1, 2, 3], ["a"]) == [(1, "a")]
assert zip_to_pairs([], ["a"]) == []


# == is_list_palindrome, list_is_palindrome, is_symmetric_list
# items: lst, values, numbers, data
# i: index, pos, at, k
# - Return True if the list {items} is the same forwards and backwards.
# - Check whether a list equals its reverse.
# - Check if {items}, a list, is a palindrome.
# - Return whether the elements of {items} are the same from both ends.
# - Test if a list is symmetric about its middle.
# ? Does the list {items} stay the same when it is turned around?
# ? Say whether {items} has the same elements read from back to front.
def is_list_palindrome(items: list[int]) -> bool:
    return items == items[::-1]


def is_list_palindrome(items: list[int]) -> bool:
    for i in range(len(items) // 2):
        if items[i] != items[-1 - i]:
            return False
    return True


assert is_list_palindrome([1, 2, 1])
assert is_list_palindrome([3, 3])
assert not is_list_palindrome([1, 2])
assert is_list_palindrome([])
