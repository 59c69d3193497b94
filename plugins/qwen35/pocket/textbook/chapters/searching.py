"""Searching algorithms."""

import bisect
import heapq
from collections import Counter


# == linear_search, sequential_search, find_index
# items: values, numbers, elements
# target: wanted, value, needle
# i: index, position
# - Return the index of the first {target} in {items}, or -1 if it is missing.
# - Search {items} from left to right for {target}; return its index or -1.
# - Find the first position of {target} in {items}, or return -1.
# - Do a linear search: return the index of {target}, or -1 if it is not found.
# - Look at one item after the other and return the index of {target}, or -1.
# ? At which index does {target} come first in {items}? Give -1 if nowhere.
# ? Walk through {items} to find {target} and return where it is, or -1.
def linear_search(items: list[int], target: int) -> int:
    for i in range(len(items)):
        if items[i] == target:
            return i
    return -1


def linear_search(items: list[int], target: int) -> int:
    for i, item in enumerate(items):
        if item == target:
            return i
    return -1


assert linear_search([4, 2, 7], 7) == 2
assert linear_search([4, 2, 4], 4) == 0
assert linear_search([4, 2, 7], 5) == -1
assert linear_search([], 1) == -1


# == binary_search, bisect_search, search_sorted
# items: values, numbers, arr
# target: wanted, value, needle
# low: left, lo
# high: right, hi
# mid: middle, center
# - Return the index of {target} in the sorted list {items}, or -1 if it is missing.
# - Search the sorted list {items} for {target} and return its index or -1.
# - Find {target} in a sorted list by halving the range; return -1 if it is not there.
# - Do a binary search in {items} and return the index of {target}, or -1.
# - Return the position of {target} in ascending {items}, or -1 if it is not found.
# - Binary search: return the index of {target} in {items}, or -1.
# ? Where is {target} in the ascending list {items}? Answer -1 if it is absent.
# ? Find {target} in sorted {items} in logarithmic time and give its index, else -1.
def binary_search(items: list[int], target: int) -> int:
    low, high = 0, len(items) - 1
    while low <= high:
        mid = (low + high) // 2
        if items[mid] == target:
            return mid
        if items[mid] < target:
            low = mid + 1
        else:
            high = mid - 1
    return -1


def binary_search(items: list[int], target: int) -> int:
    low = 0
    high = len(items) - 1
    while low <= high:
        mid = (low + high) // 2
        if items[mid] < target:
            low = mid + 1
        elif items[mid] > target:
            high = mid - 1
        else:
            return mid
    return -1


assert binary_search([1, 3, 5, 7, 9], 7) == 3
assert binary_search([1, 3, 5, 7, 9], 1) == 0
assert binary_search([1, 3, 5, 7, 9], 4) == -1
assert binary_search([2], 2) == 0
assert binary_search([], 1) == -1


# == binary_search_recursive, recursive_binary_search, binary_search_in_range
# items: values, numbers, arr
# target: wanted, value, needle
# low: left, lo
# high: right, hi
# mid: middle, center
# - Search {items} from {low} to {high} inclusive for {target} by recursion; -1 if missing.
# - Return the index of {target} in sorted {items} between {low} and {high}, or -1.
# - Do a recursive binary search from index {low} to index {high}, both included; else -1.
# - Recursively find {target} in the sorted part {low} to {high} of {items}, or return -1.
# - Binary search by recursion: index of {target} from {low} through {high}, or -1.
# ? Halve the range {low} to {high} recursively until {target} is found; -1 if it is not.
# ? Where between the indices {low} and {high} of sorted {items} is {target}? Else -1.
def binary_search_recursive(items: list[int], target: int, low: int, high: int) -> int:
    if low > high:
        return -1
    mid = (low + high) // 2
    if items[mid] == target:
        return mid
    if items[mid] < target:
        return binary_search_recursive(items, target, mid + 1, high)
    return binary_search_recursive(items, target, low, mid - 1)


assert binary_search_recursive([1, 3, 5, 7], 5, 0, 3) == 2
assert binary_search_recursive([1, 3, 5, 7], 1, 0, 3) == 0
assert binary_search_recursive([1, 3, 5, 7], 4, 0, 3) == -1
assert binary_search_recursive([], 4, 0, -1) == -1


# == first_occurrence, find_first, leftmost_index
# items: values, numbers, arr
# target: wanted, value, needle
# low: left, lo
# high: right, hi
# mid: middle, center
# result: found, best
# - Return the index of the first {target} in the sorted list {items}, or -1.
# - Find the first occurrence of {target} in sorted {items} by binary search, or -1.
# - Return the lowest index at which the sorted list {items} has {target}, or -1.
# - Search sorted {items} for the leftmost {target}; return -1 if there is none.
# - Find where {target} first appears in the ascending list {items}, or return -1.
# ? Which is the smallest index of {target} in ascending {items}? Give -1 without one.
# ? Among equal items of a sorted list, find the first {target}; -1 if there is none.
def first_occurrence(items: list[int], target: int) -> int:
    low, high = 0, len(items) - 1
    result = -1
    while low <= high:
        mid = (low + high) // 2
        if items[mid] >= target:
            if items[mid] == target:
                result = mid
            high = mid - 1
        else:
            low = mid + 1
    return result


def first_occurrence(items: list[int], target: int) -> int:
    i = bisect.bisect_left(items, target)
    if i < len(items) and items[i] == target:
        return i
    return -1


assert first_occurrence([1, 2, 2, 2, 3], 2) == 1
assert first_occurrence([5, 5, 5], 5) == 0
assert first_occurrence([1, 3], 2) == -1
assert first_occurrence([], 2) == -1


# == last_occurrence, find_last, rightmost_index
# items: values, numbers, arr
# target: wanted, value, needle
# low: left, lo
# high: right, hi
# mid: middle, center
# result: found, best
# - Return the index of the last {target} in the sorted list {items}, or -1.
# - Find the last occurrence of {target} in sorted {items} by binary search, or -1.
# - Return the highest index at which the sorted list {items} has {target}, or -1.
# - Search sorted {items} for the rightmost {target}; return -1 if there is none.
# - Find where {target} last appears in the ascending list {items}, or return -1.
# ? Which is the greatest index of {target} in ascending {items}? Give -1 without one.
# ? Among equal items of a sorted list, find the last {target}; -1 if there is none.
def last_occurrence(items: list[int], target: int) -> int:
    low, high = 0, len(items) - 1
    result = -1
    while low <= high:
        mid = (low + high) // 2
        if items[mid] <= target:
            if items[mid] == target:
                result = mid
            low = mid + 1
        else:
            high = mid - 1
    return result


def last_occurrence(items: list[int], target: int) -> int:
    i = bisect.bisect_right(items, target)
    if i > 0 and items[i - 1] == target:
        return i - 1
    return -1


assert last_occurrence([1, 2, 2, 2, 3], 2) == 3
assert last_occurrence([5, 5, 5], 5) == 2
assert last_occurrence([1, 3], 2) == -1
assert last_occurrence([], 2) == -1


# == insert_position, search_insert, insertion_index
# items: values, numbers, arr
# target: wanted, value, new
# low: left, lo
# high: right, hi
# mid: middle, center
# - Return the index at which {target} has to be inserted to keep {items} sorted.
# - Find the first index of sorted {items} whose item is not less than {target}.
# - Return where {target} is, or where it would be inserted, in the sorted list {items}.
# - Find the leftmost position for {target} in the ascending list {items}.
# - Return the insertion index of {target} in sorted {items}, before any equal items.
# ? Count the items of the ascending list {items} that are smaller than {target}.
# ? Before which index of sorted {items} does {target} belong, ahead of equal items?
def insert_position(items: list[int], target: int) -> int:
    low, high = 0, len(items)
    while low < high:
        mid = (low + high) // 2
        if items[mid] < target:
            low = mid + 1
        else:
            high = mid
    return low


def insert_position(items: list[int], target: int) -> int:
    for i, item in enumerate(items):
        if item >= target:
            return i
    return len(items)


def insert_position(items: list[int], target: int) -> int:
    return bisect.bisect_left(items, target)


assert insert_position([1, 3, 5], 3) == 1
assert insert_position([1, 3, 5], 4) == 2
assert insert_position([1, 3, 5], 0) == 0
assert insert_position([1, 3, 5], 9) == 3
assert insert_position([], 5) == 0


# ==! find_missing_number, missing_number, find_missing
# numbers: values, items, nums
# - Return the one number from 0 to n that is missing, where n is the length of {numbers}.
# - Find the missing one of the numbers 0 to len({numbers}); they are in any order.
# - Return the only integer from 0 to len({numbers}) that {numbers} does not contain.
# - Find which number of 0, 1, ..., len({numbers}) does not occur in {numbers}.
# - Return the missing number of a list that holds all but one of 0 to its length.
# ? Which integer between 0 and len({numbers}), both included, is absent?
# ? All of 0 to len({numbers}) but one are in the list; give the one that is not.
def find_missing_number(numbers: list[int]) -> int:
    n = len(numbers)
    return n * (n + 1) // 2 - sum(numbers)


def find_missing_number(numbers: list[int]) -> int:
    present = set(numbers)
    for i in range(len(numbers) + 1):
        if i not in present:
            return i
    return -1


assert find_missing_number([3, 0, 1]) == 2
assert find_missing_number([0, 1]) == 2
assert find_missing_number([1]) == 0
assert find_missing_number([9, 6, 4, 2, 3, 5, 7, 0, 1]) == 8


# == find_duplicates, get_duplicates, repeated_items
# items: values, numbers, elements
# seen: known, visited
# result: duplicates, found, repeated
# item: x, element
# - Return a sorted list of the items that occur more than once in {items}.
# - Find all duplicates in {items}: each one once, in ascending order.
# - List every item that is in {items} at least twice, once each and sorted.
# - Return the values that are repeated in {items} as a sorted list without repeats.
# - Find which items appear more than once, and return them sorted, each one once.
# ? Which items of {items} have a twin? Give them in ascending order, each once.
# ? Collect what is contained two or more times, as a sorted list of distinct items.
def find_duplicates(items: list[int]) -> list[int]:
    seen = set()
    result = set()
    for item in items:
        if item in seen:
            result.add(item)
        seen.add(item)
    return sorted(result)


def find_duplicates(items: list[int]) -> list[int]:
    counts = Counter(items)
    return sorted(item for item, count in counts.items() if count > 1)


assert find_duplicates([1, 2, 3, 2, 1, 1]) == [1, 2]
assert find_duplicates([5, 4, 5, 4]) == [4, 5]
assert find_duplicates([1, 2, 3]) == []
assert find_duplicates([]) == []


# == two_sum, find_two_sum, pair_with_sum
# numbers: values, nums, items
# target: wanted, total, goal
# seen: known, positions
# i: index, left
# j: other, right
# - Return the indices of two numbers that add up to {target} as a tuple, or None.
# - Find i < j so that the numbers at i and j add up to {target}; return (i, j) or None.
# - Return a pair of indices, the lower one first, whose numbers sum to {target}, or None.
# - Find two different positions whose values sum to {target}: a tuple in order, else None.
# - Return the tuple of indices, in order, of two numbers with the sum {target}, or None.
# ? At which two positions (smaller first) do the numbers make {target}? Else None.
# ? Give indices (i, j) with i < j and the sum {target}, or None without such a pair.
def two_sum(numbers: list[int], target: int) -> tuple[int, int] | None:
    seen = {}
    for i, number in enumerate(numbers):
        if target - number in seen:
            return (seen[target - number], i)
        seen[number] = i
    return None


def two_sum(numbers: list[int], target: int) -> tuple[int, int] | None:
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            if numbers[i] + numbers[j] == target:
                return (i, j)
    return None


assert two_sum([2, 7, 11, 15], 9) == (0, 1)
assert two_sum([3, 2, 4], 6) == (1, 2)
assert two_sum([3, 3], 6) == (0, 1)
assert two_sum([1, 2, 3], 10) is None
assert two_sum([], 0) is None


# == three_sum, find_three_sum, triplets_with_zero_sum
# numbers: values, nums, items
# result: triplets, found
# left: low, j
# right: high, k
# - Return all distinct triplets of {numbers} that add up to zero, each as a sorted list.
# - Find every set of three numbers with the sum 0: a list of sorted lists, in order.
# - List the triplets from {numbers} which sum to zero as sorted lists, without repeats.
# - Return the unique triplets [a, b, c], a <= b <= c, of {numbers} whose sum is zero.
# - Find all different groups of three numbers that sum to 0, as sorted lists in order.
# ? Which three of {numbers} make zero? Give each such group once, as a sorted list.
# ? Collect all ways to get 0 from three of the {numbers}, as a sorted list of sorted lists.
def three_sum(numbers: list[int]) -> list[list[int]]:
    numbers = sorted(numbers)
    result = []
    for i in range(len(numbers)):
        if i > 0 and numbers[i] == numbers[i - 1]:
            continue
        left, right = i + 1, len(numbers) - 1
        while left < right:
            total = numbers[i] + numbers[left] + numbers[right]
            if total == 0:
                result.append([numbers[i], numbers[left], numbers[right]])
                while left < right and numbers[left] == numbers[left + 1]:
                    left += 1
            if total <= 0:
                left += 1
            else:
                right -= 1
    return result


def three_sum(numbers: list[int]) -> list[list[int]]:
    numbers = sorted(numbers)
    found = set()
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            for k in range(j + 1, len(numbers)):
                if numbers[i] + numbers[j] + numbers[k] == 0:
                    found.add((numbers[i], numbers[j], numbers[k]))
    return [list(triplet) for triplet in sorted(found)]


assert sorted(three_sum([-1, 0, 1, 2, -1, -4])) == [[-1, -1, 2], [-1, 0, 1]]
assert three_sum([0, 0, 0, 0]) == [[0, 0, 0]]
assert three_sum([1, 2, -2]) == []
assert three_sum([]) == []


# == find_peak, peak_index, find_peak_element
# items: values, numbers, arr
# low: left, lo
# high: right, hi
# mid: middle, center
# - Return the index of the peak of {items}, which first rise and then fall.
# - Find the peak of a list that rises strictly and then falls strictly; return its index.
# - Return the index of the largest item of {items}, which rise up to it and then fall.
# - Find the index of the top of a list that first increases and then decreases.
# - Return where {items} stop rising and begin to fall, as an index.
# ? At which index is the summit of a list that climbs and then descends?
# ? The {items} go up and then down; give the position of the highest one.
def find_peak(items: list[int]) -> int:
    low, high = 0, len(items) - 1
    while low < high:
        mid = (low + high) // 2
        if items[mid] < items[mid + 1]:
            low = mid + 1
        else:
            high = mid
    return low


def find_peak(items: list[int]) -> int:
    i = 0
    while i + 1 < len(items) and items[i] < items[i + 1]:
        i += 1
    return i


assert find_peak([1, 3, 7, 4, 2]) == 2
assert find_peak([5, 4, 1]) == 0
assert find_peak([1, 2, 9]) == 2
assert find_peak([6]) == 0


# == kth_smallest, find_kth_smallest, nth_smallest
# items: values, numbers, elements
# k: n, rank
# - Return the {k}-th smallest item of {items}, where 1 is the smallest.
# - Find the {k}-th smallest number in {items}, counting from 1.
# - Return the item at place {k} of the ascending order, with the smallest at place 1.
# - Find the {k}-th smallest of {items}; equal items count separately, {k} starts at 1.
# - Return number {k}, counting from one, of {items} in ascending order.
# ? Which item has exactly {k} - 1 places before it when {items} are sorted?
# ? Sort and give the item with rank {k}, so that rank 1 is the minimum.
def kth_smallest(items: list[int], k: int) -> int:
    return sorted(items)[k - 1]


def kth_smallest(items: list[int], k: int) -> int:
    return heapq.nsmallest(k, items)[-1]


def kth_smallest(items: list[int], k: int) -> int:
    pivot = items[len(items) // 2]
    smaller = [item for item in items if item < pivot]
    equal = [item for item in items if item == pivot]
    if k <= len(smaller):
        return kth_smallest(smaller, k)
    if k <= len(smaller) + len(equal):
        return pivot
    larger = [item for item in items if item > pivot]
    return kth_smallest(larger, k - len(smaller) - len(equal))


assert kth_smallest([7, 2, 9, 4], 1) == 2
assert kth_smallest([7, 2, 9, 4], 3) == 7
assert kth_smallest([3, 1, 3, 2], 4) == 3
assert kth_smallest([5], 1) == 5


# == kth_largest, find_kth_largest, nth_largest
# items: values, numbers, elements
# k: n, rank
# - Return the {k}-th largest item of {items}, where 1 is the largest.
# - Find the {k}-th largest number in {items}, counting from 1.
# - Return the item at place {k} of the descending order, with the largest at place 1.
# - Find the {k}-th largest of {items}; equal items count separately, {k} starts at 1.
# - Return number {k}, counting from one, of {items} in descending order.
# ? Which item comes at place {k} when {items} are sorted from high to low?
# ? Give the item with rank {k} from the top, so that rank 1 is the maximum.
def kth_largest(items: list[int], k: int) -> int:
    return sorted(items)[-k]


def kth_largest(items: list[int], k: int) -> int:
    return heapq.nlargest(k, items)[-1]


def kth_largest(items: list[int], k: int) -> int:
    heap = items[:k]
    heapq.heapify(heap)
    for item in items[k:]:
        if item > heap[0]:
            heapq.heapreplace(heap, item)
    return heap[0]


assert kth_largest([7, 2, 9, 4], 1) == 9
assert kth_largest([7, 2, 9, 4], 3) == 4
assert kth_largest([3, 1, 3, 2], 2) == 3
assert kth_largest([5], 1) == 5


# == majority_element, find_majority, majority_item
# items: values, numbers, elements
# candidate: winner, leader
# count: votes, balance
# - Return the item that makes up more than half of {items}; there always is one.
# - Find the majority element, which occurs more than len({items}) / 2 times.
# - Return the element that occurs in more than half of the places of {items}.
# - Find the item that more than half of all {items} are equal to.
# - Return the majority element of {items}, which is sure to exist.
# ? Which value do more than half of the {items} have?
# ? Give the item that occurs more often than all others together.
def majority_element(items: list[int]) -> int:
    candidate = items[0]
    count = 0
    for item in items:
        if count == 0:
            candidate = item
        count += 1 if item == candidate else -1
    return candidate


def majority_element(items: list[int]) -> int:
    return Counter(items).most_common(1)[0][0]


def majority_element(items: list[int]) -> int:
    return sorted(items)[len(items) // 2]


assert majority_element([3, 2, 3]) == 3
assert majority_element([2, 2, 1, 1, 1, 2, 2]) == 2
assert majority_element([9]) == 9


# == search_matrix, find_in_matrix, locate_in_grid
# matrix: grid, table, rows
# target: wanted, value, needle
# row: r, y
# column: c, x
# - Return (row, column) of the first {target} in {matrix}, row by row, or None.
# - Find {target} in a list of lists; return a tuple (row, column), or None if missing.
# - Search {matrix} row by row for {target} and return its (row, column), or None.
# - Return the position of {target} in {matrix} as (row, column), or None if not found.
# - Locate {target} in the rows of {matrix} as a tuple (row, column), else None.
# ? In which row and column of {matrix} is {target}? Give a tuple, or None if nowhere.
# ? Look through all rows for {target} and give its row and column indices, or None.
def search_matrix(matrix: list[list[int]], target: int) -> tuple[int, int] | None:
    for row in range(len(matrix)):
        for column in range(len(matrix[row])):
            if matrix[row][column] == target:
                return (row, column)
    return None


def search_matrix(matrix: list[list[int]], target: int) -> tuple[int, int] | None:
    for row, items in enumerate(matrix):
        if target in items:
            return (row, items.index(target))
    return None


assert search_matrix([[1, 2], [3, 4]], 3) == (1, 0)
assert search_matrix([[1, 2], [3, 4]], 2) == (0, 1)
assert search_matrix([[1, 2], [3, 4]], 9) is None
assert search_matrix([], 1) is None
