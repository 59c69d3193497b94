"""Sorting algorithms."""

import heapq
from collections import Counter


# == bubble_sort, sort_bubble, bubblesort
# items: numbers, values, arr
# n: length, size
# swapped: changed, moved
# - Sort {items} in ascending order with bubble sort and return the sorted list.
# - Return the sorted list, using the bubble sort algorithm.
# - Sort a list by swapping neighbours that are in the wrong order, and return it.
# - Implement bubble sort: return {items} from smallest to largest.
# - Return {items} in ascending order by means of bubble sort.
# - Sort a list of numbers with bubble sort.
# ? Let large items rise to the back by swaps of neighbours; return the ordered list.
# ? Give back {items} in increasing order, sorted by bubbling.
def bubble_sort(items: list[int]) -> list[int]:
    n = len(items)
    for i in range(n):
        for j in range(n - i - 1):
            if items[j] > items[j + 1]:
                items[j], items[j + 1] = items[j + 1], items[j]
    return items


def bubble_sort(items: list[int]) -> list[int]:
    n = len(items)
    for i in range(n):
        swapped = False
        for j in range(0, n - i - 1):
            if items[j] > items[j + 1]:
                items[j], items[j + 1] = items[j + 1], items[j]
                swapped = True
        if not swapped:
            break
    return items


def bubble_sort(items: list[int]) -> list[int]:
    result = list(items)
    swapped = True
    while swapped:
        swapped = False
        for i in range(len(result) - 1):
            if result[i] > result[i + 1]:
                result[i], result[i + 1] = result[i + 1], result[i]
                swapped = True
    return result


assert bubble_sort([3, 1, 2]) == [1, 2, 3]
assert bubble_sort([5, -1, 5, 0]) == [-1, 0, 5, 5]
assert bubble_sort([1]) == [1]
assert bubble_sort([]) == []


# == selection_sort, sort_selection, selectionsort
# items: numbers, values, arr
# smallest: lowest, min_index
# - Sort {items} in ascending order with selection sort and return the sorted list.
# - Return the sorted list, using the selection sort algorithm.
# - Sort a list by moving the smallest remaining item to the front, and return it.
# - Implement selection sort: return {items} from smallest to largest.
# - Return {items} in ascending order by means of selection sort.
# - Sort a list of numbers with selection sort.
# ? Pick the minimum of the rest again and again; return the list in increasing order.
# ? Give back {items} in ascending order, sorted by selecting the least item each time.
def selection_sort(items: list[int]) -> list[int]:
    for i in range(len(items)):
        smallest = i
        for j in range(i + 1, len(items)):
            if items[j] < items[smallest]:
                smallest = j
        items[i], items[smallest] = items[smallest], items[i]
    return items


def selection_sort(items: list[int]) -> list[int]:
    remaining = list(items)
    result = []
    while remaining:
        smallest = min(remaining)
        remaining.remove(smallest)
        result.append(smallest)
    return result


assert selection_sort([3, 1, 2]) == [1, 2, 3]
assert selection_sort([4, 4, -2, 9]) == [-2, 4, 4, 9]
assert selection_sort([7]) == [7]
assert selection_sort([]) == []


# == insertion_sort, sort_insertion, insertionsort
# items: numbers, values, arr
# current: value, item
# j: position, k
# - Sort {items} in ascending order with insertion sort and return the sorted list.
# - Return the sorted list, using the insertion sort algorithm.
# - Sort a list by inserting each item into the sorted part before it, and return it.
# - Implement insertion sort: return {items} from smallest to largest.
# - Return {items} in ascending order by means of insertion sort.
# - Sort a list of numbers with insertion sort.
# ? Order the list as one orders a hand of cards, item by item, and return it.
# ? Give back {items} in increasing order, each one inserted where it belongs.
def insertion_sort(items: list[int]) -> list[int]:
    for i in range(1, len(items)):
        current = items[i]
        j = i - 1
        while j >= 0 and items[j] > current:
            items[j + 1] = items[j]
            j -= 1
        items[j + 1] = current
    return items


def insertion_sort(items: list[int]) -> list[int]:
    result = []
    for current in items:
        j = len(result)
        while j > 0 and result[j - 1] > current:
            j -= 1
        result.insert(j, current)
    return result


assert insertion_sort([3, 1, 2]) == [1, 2, 3]
assert insertion_sort([2, 2, 1, -5]) == [-5, 1, 2, 2]
assert insertion_sort([7]) == [7]
assert insertion_sort([]) == []


# == merge_sort, sort_merge, mergesort
# items: numbers, values, arr
# mid: middle, half
# left: first, lower
# right: second, upper
# result: merged, combined
# - Sort {items} in ascending order with merge sort and return the sorted list.
# - Return a sorted list, using the merge sort algorithm.
# - Sort both halves of a list recursively, merge them and return the result.
# - Implement merge sort: return {items} from smallest to largest.
# - Return {items} in ascending order by means of merge sort.
# - Sort a list of numbers with merge sort.
# ? Split the list in two, order both parts and merge them into one ascending list.
# ? Give back {items} in increasing order by dividing and merging.
def merge_sort(items: list[int]) -> list[int]:
    if len(items) <= 1:
        return items
    mid = len(items) // 2
    left = merge_sort(items[:mid])
    right = merge_sort(items[mid:])
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    return result + left[i:] + right[j:]


def merge(left: list[int], right: list[int]) -> list[int]:
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    result.extend(left[i:])
    result.extend(right[j:])
    return result


def merge_sort(items: list[int]) -> list[int]:
    if len(items) < 2:
        return items
    mid = len(items) // 2
    return merge(merge_sort(items[:mid]), merge_sort(items[mid:]))


assert merge_sort([3, 1, 2]) == [1, 2, 3]
assert merge_sort([8, 3, 8, -1, 0]) == [-1, 0, 3, 8, 8]
assert merge_sort([4]) == [4]
assert merge_sort([]) == []


# == quick_sort, quicksort, sort_quick
# items: numbers, values, arr
# pivot: middle, p
# smaller: less, lower
# equal: same, matching
# larger: greater, higher
# - Sort {items} in ascending order with quicksort and return the sorted list.
# - Return a sorted list, using the quicksort algorithm.
# - Sort a list by splitting it around a pivot recursively, and return the result.
# - Implement quicksort: return {items} from smallest to largest.
# - Return {items} in ascending order by means of quicksort.
# - Sort a list of numbers with quicksort.
# ? Choose a pivot, order what is below and above it, and give the ascending list.
# ? Give back {items} in increasing order by partitioning around pivots.
def quick_sort(items: list[int]) -> list[int]:
    if len(items) <= 1:
        return items
    pivot = items[len(items) // 2]
    smaller = [x for x in items if x < pivot]
    equal = [x for x in items if x == pivot]
    larger = [x for x in items if x > pivot]
    return quick_sort(smaller) + equal + quick_sort(larger)


def quick_sort(items: list[int]) -> list[int]:
    if len(items) <= 1:
        return items
    pivot = items[0]
    smaller = [x for x in items[1:] if x <= pivot]
    larger = [x for x in items[1:] if x > pivot]
    return quick_sort(smaller) + [pivot] + quick_sort(larger)


assert quick_sort([3, 1, 2]) == [1, 2, 3]
assert quick_sort([9, -3, 9, 0, 4]) == [-3, 0, 4, 9, 9]
assert quick_sort([6]) == [6]
assert quick_sort([]) == []


# == quick_sort_in_place, quicksort_range, quick_sort_between
# items: numbers, values, arr
# low: left, lo
# high: right, hi
# pivot: middle, p
# i: border, store
# - Sort {items} from index {low} to index {high}, both included, in place.
# - Sort the part {low} to {high} (inclusive) of {items} in place with quicksort.
# - Do an in-place quicksort of {items} between {low} and {high} inclusive.
# - Sort {items} in place, but only from position {low} through {high}, by quicksort.
# - Quicksort the items at {low} up to and including {high} without a new list.
# ? Put the items at the indices {low} through {high} in order inside the list itself.
# ? Order {items} in place by partitioning; the range {low} to {high} includes both ends.
def quick_sort_in_place(items: list[int], low: int, high: int) -> None:
    if low >= high:
        return
    pivot = items[high]
    i = low
    for j in range(low, high):
        if items[j] <= pivot:
            items[i], items[j] = items[j], items[i]
            i += 1
    items[i], items[high] = items[high], items[i]
    quick_sort_in_place(items, low, i - 1)
    quick_sort_in_place(items, i + 1, high)


data = [5, 2, 9, 1, 5]
quick_sort_in_place(data, 0, 4)
assert data == [1, 2, 5, 5, 9]
data = [3, 2, 1]
quick_sort_in_place(data, 0, 1)
assert data == [2, 3, 1]
data = []
quick_sort_in_place(data, 0, -1)
assert data == []


# == lomuto_partition, partition_by_last, partition_around_last
# items: numbers, values, arr
# low: left, lo
# high: right, hi
# pivot: last, p
# i: border, store
# - Partition {items} from {low} to {high} around the last item; return its new index.
# - Move items not above the pivot {items}[{high}] before it; return the pivot's index.
# - Do the Lomuto partition of {items} between {low} and {high}; return the pivot's index.
# - Rearrange {low} to {high} in place around the pivot at {high} and return its new place.
# - Put the item at {high} between those <= it and those > it; return its final index.
# ? Split the range {low} to {high} in place by its last item; where does that one end up?
# ? Partition in place with the item at {high} as the pivot and give its new position.
def lomuto_partition(items: list[int], low: int, high: int) -> int:
    pivot = items[high]
    i = low
    for j in range(low, high):
        if items[j] <= pivot:
            items[i], items[j] = items[j], items[i]
            i += 1
    items[i], items[high] = items[high], items[i]
    return i


data = [7, 2, 9, 4]
assert lomuto_partition(data, 0, 3) == 1
assert data[1] == 4 and data[0] == 2
assert lomuto_partition([1, 2, 3], 0, 2) == 2
assert lomuto_partition([5], 0, 0) == 0


# == heap_sort, heapsort, sort_with_heap
# items: numbers, values, arr
# heap: queue, pile
# - Sort {items} in ascending order with a heap and return the sorted list.
# - Return a sorted list, using the heap sort algorithm.
# - Put all items on a heap, take the smallest again and again, return the sorted list.
# - Implement heap sort: return {items} from smallest to largest.
# - Return {items} in ascending order by means of a heap.
# - Sort a list of numbers with heap sort.
# ? Order the list with the help of a heap and give the ascending result.
# ? Give back {items} in increasing order, taken one by one from a heap.
def heap_sort(items: list[int]) -> list[int]:
    heap = list(items)
    heapq.heapify(heap)
    return [heapq.heappop(heap) for _ in range(len(heap))]


def heap_sort(items: list[int]) -> list[int]:
    heap = []
    for item in items:
        heapq.heappush(heap, item)
    result = []
    while heap:
        result.append(heapq.heappop(heap))
    return result


def sift_down(items: list[int], root: int, size: int) -> None:
    while 2 * root + 1 < size:
        child = 2 * root + 1
        if child + 1 < size and items[child] < items[child + 1]:
            child += 1
        if items[root] >= items[child]:
            return
        items[root], items[child] = items[child], items[root]
        root = child


def heap_sort(items: list[int]) -> list[int]:
    n = len(items)
    for i in range(n // 2 - 1, -1, -1):
        sift_down(items, i, n)
    for i in range(n - 1, 0, -1):
        items[0], items[i] = items[i], items[0]
        sift_down(items, 0, i)
    return items


assert heap_sort([3, 1, 2]) == [1, 2, 3]
assert heap_sort([5, -4, 5, 0, 2]) == [-4, 0, 2, 5, 5]
assert heap_sort([8]) == [8]
assert heap_sort([]) == []


# == counting_sort, sort_by_counting, count_sort
# numbers: items, values, arr
# counts: tally, buckets
# result: ordered, output
# - Sort non-negative integers with counting sort and return the sorted list.
# - Return the non-negative {numbers} in ascending order, using counting sort.
# - Sort a list by counting how often each non-negative number occurs, and return it.
# - Implement counting sort for integers from zero up: return a new ascending list.
# - Return the integers in {numbers}, none below zero, sorted by counting.
# ? Order integers that are not negative by counting them, and give the ascending list.
# ? Tally each number of {numbers} (all at least 0) and rebuild the list in order.
def counting_sort(numbers: list[int]) -> list[int]:
    if not numbers:
        return []
    counts = [0] * (max(numbers) + 1)
    for number in numbers:
        counts[number] += 1
    result = []
    for number, count in enumerate(counts):
        result.extend([number] * count)
    return result


def counting_sort(numbers: list[int]) -> list[int]:
    counts = Counter(numbers)
    result = []
    for number in range(max(numbers, default=-1) + 1):
        result += [number] * counts[number]
    return result


assert counting_sort([4, 2, 2, 8, 0]) == [0, 2, 2, 4, 8]
assert counting_sort([1]) == [1]
assert counting_sort([3, 3, 3]) == [3, 3, 3]
assert counting_sort([]) == []


# == radix_sort, sort_by_digits, lsd_radix_sort
# numbers: items, values, arr
# place: exponent, unit
# buckets: bins, groups
# - Sort non-negative integers with radix sort and return the sorted list.
# - Return the non-negative {numbers} in ascending order, using radix sort.
# - Sort integers that are not negative digit by digit, and return the ascending list.
# - Implement radix sort in base 10 for integers from zero up: return the sorted list.
# - Sort {numbers}, none below zero, by their digits from the last to the first; return it.
# ? Order integers of at least 0 with one pass per decimal digit; give the ascending list.
# ? Distribute {numbers} (not negative) by ones, tens and so on until they ascend.
def radix_sort(numbers: list[int]) -> list[int]:
    place = 1
    while place <= max(numbers, default=0):
        buckets = [[] for _ in range(10)]
        for number in numbers:
            buckets[number // place % 10].append(number)
        numbers = [number for bucket in buckets for number in bucket]
        place *= 10
    return numbers


assert radix_sort([170, 45, 75, 90, 2, 802, 66]) == [2, 45, 66, 75, 90, 170, 802]
assert radix_sort([3, 0, 3]) == [0, 3, 3]
assert radix_sort([0, 0]) == [0, 0]
assert radix_sort([]) == []


# == shell_sort, sort_shell, shellsort
# items: numbers, values, arr
# gap: step, interval
# current: value, item
# j: position, k
# - Sort {items} in ascending order with Shell sort and return the sorted list.
# - Return the sorted list, using the Shell sort algorithm.
# - Sort a list by insertion sort with shrinking gaps, and return it.
# - Implement Shell sort: return {items} from smallest to largest.
# - Sort a list of numbers with Shell sort.
# ? Order the list by comparing items that are ever smaller gaps apart, and return it.
# ? Give back {items} in increasing order by the method of Donald Shell.
def shell_sort(items: list[int]) -> list[int]:
    gap = len(items) // 2
    while gap > 0:
        for i in range(gap, len(items)):
            current = items[i]
            j = i
            while j >= gap and items[j - gap] > current:
                items[j] = items[j - gap]
                j -= gap
            items[j] = current
        gap //= 2
    return items


assert shell_sort([3, 1, 2]) == [1, 2, 3]
assert shell_sort([9, 8, 7, 6, 5, 4]) == [4, 5, 6, 7, 8, 9]
assert shell_sort([1]) == [1]
assert shell_sort([]) == []


# == merge_sorted, merge_sorted_lists, merge_two_sorted
# a: left, first
# b: right, second
# result: merged, combined
# - Merge two sorted lists into one sorted list.
# - Return one ascending list with all items of the ascending lists {a} and {b}.
# - Merge the sorted lists {a} and {b} and return a new sorted list.
# - Combine two lists that are already sorted into a single sorted list.
# - Return the sorted list of everything in the sorted lists {a} and {b}.
# ? Join two ascending lists so that the result ascends as well.
# ? Give all items of both ordered lists in one ordered list, repeats kept.
def merge_sorted(a: list[int], b: list[int]) -> list[int]:
    result = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] <= b[j]:
            result.append(a[i])
            i += 1
        else:
            result.append(b[j])
            j += 1
    result.extend(a[i:])
    result.extend(b[j:])
    return result


def merge_sorted(a: list[int], b: list[int]) -> list[int]:
    return list(heapq.merge(a, b))


def merge_sorted(a: list[int], b: list[int]) -> list[int]:
    if not a:
        return b
    if not b:
        return a
    if a[0] <= b[0]:
        return [a[0]] + merge_sorted(a[1:], b)
    return [b[0]] + merge_sorted(a, b[1:])


assert merge_sorted([1, 3, 5], [2, 4]) == [1, 2, 3, 4, 5]
assert merge_sorted([1, 1], [1]) == [1, 1, 1]
assert merge_sorted([], [1, 2]) == [1, 2]
assert merge_sorted([], []) == []


# == merge_many_sorted, merge_k_sorted, merge_all_sorted
# lists: groups, sequences
# result: merged, combined
# heap: queue, candidates
# - Merge any number of sorted lists into one sorted list.
# - Return one ascending list with all items of the ascending lists in {lists}.
# - Merge all sorted lists in {lists} and return a new sorted list.
# - Combine a list of sorted lists into a single sorted list.
# - Return the sorted list of everything in the sorted inner lists of {lists}.
# ? Join several ascending lists so that the result ascends as well.
# ? Give the items of all the ordered {lists} in one ordered list.
def merge_many_sorted(lists: list[list[int]]) -> list[int]:
    return list(heapq.merge(*lists))


def merge_many_sorted(lists: list[list[int]]) -> list[int]:
    heap = [(items[0], i, 0) for i, items in enumerate(lists) if items]
    heapq.heapify(heap)
    result = []
    while heap:
        item, i, j = heapq.heappop(heap)
        result.append(item)
        if j + 1 < len(lists[i]):
            heapq.heappush(heap, (lists[i][j + 1], i, j + 1))
    return result


assert merge_many_sorted([[1, 4], [2, 5], [3]]) == [1, 2, 3, 4, 5]
assert merge_many_sorted([[2], [], [1, 2]]) == [1, 2, 2]
assert merge_many_sorted([[], []]) == []
assert merge_many_sorted([]) == []


# == is_sorted, check_sorted, is_ascending
# items: numbers, values, elements
# - Return True if {items} are in ascending order. Equal neighbours are allowed.
# - Check whether a list is sorted from smallest to largest, repeats allowed.
# - Test if no item of {items} is greater than the next one.
# - Determine whether {items} are already sorted in ascending order.
# - Return whether each item is less than or equal to the one behind it.
# ? Would sorting {items} in ascending order leave them as they are?
# ? Say whether the list never goes down from one item to the next.
def is_sorted(items: list[int]) -> bool:
    return all(items[i] <= items[i + 1] for i in range(len(items) - 1))


def is_sorted(items: list[int]) -> bool:
    for i in range(1, len(items)):
        if items[i - 1] > items[i]:
            return False
    return True


def is_sorted(items: list[int]) -> bool:
    return all(a <= b for a, b in zip(items, items[1:]))


assert is_sorted([1, 2, 2, 5])
assert is_sorted([])
assert is_sorted([7])
assert not is_sorted([2, 1])
assert not is_sorted([1, 3, 2])


# == sort_descending, sorted_descending, sort_from_high_to_low
# items: numbers, values, elements
# - Return {items} sorted in descending order.
# - Return a new list with the items from largest to smallest.
# - Sort {items} from high to low and return the result.
# - Return a list of {items} with the greatest first and the smallest last.
# - Sort a list in descending order and return it.
# ? Give {items} in falling order.
# ? Order the list so that no item is followed by a greater one, and return it.
def sort_descending(items: list[int]) -> list[int]:
    return sorted(items, reverse=True)


def sort_descending(items: list[int]) -> list[int]:
    return sorted(items)[::-1]


assert sort_descending([1, 3, 2]) == [3, 2, 1]
assert sort_descending([2, 2, -1]) == [2, 2, -1]
assert sort_descending([]) == []


# == sort_by_length, sort_words_by_length, order_by_length
# words: strings, names, texts
# - Return {words} sorted by length, shortest first; equal lengths keep their order.
# - Sort strings from shortest to longest. Those of one length stay in their order.
# - Return a list of {words} in order of length, keeping the order of equal lengths.
# - Sort {words} by the number of their characters, ascending and stable; return the list.
# - Return the strings from the shortest to the longest, without reordering equals.
# ? Order {words} by how long they are; words of the same length keep their places.
# ? Give a stable sort of {words}, the ones with few characters first.
def sort_by_length(words: list[str]) -> list[str]:
    return sorted(words, key=len)


def sort_by_length(words: list[str]) -> list[str]:
    result = list(words)
    result.sort(key=lambda word: len(word))
    return result


assert sort_by_length(["ccc", "a", "bb"]) == ["a", "bb", "ccc"]
assert sort_by_length(["dog", "cat", "be"]) == ["be", "dog", "cat"]
assert sort_by_length(["", "x"]) == ["", "x"]
assert sort_by_length([]) == []


# ==! sort_by_second, sort_pairs_by_second, order_by_second
# pairs: tuples, entries, rows
# pair: entry, row
# - Return {pairs} sorted by their second items; pairs with equal ones keep their order.
# - Sort a list of pairs by the second item of each pair, ascending and stable.
# - Return the tuples in ascending order of their second items, equals in given order.
# - Sort {pairs} by what stands second, smallest first, and return the list.
# - Order a list of 2-tuples by the second element, from low to high.
# ? Give {pairs} in ascending order of the latter item, without reordering equals.
# ? Sort tuples by the item at index 1, so that the lowest comes first.
def sort_by_second(pairs: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(pairs, key=lambda pair: pair[1])


assert sort_by_second([("a", 3), ("b", 1), ("c", 2)]) == [("b", 1), ("c", 2), ("a", 3)]
assert sort_by_second([("x", 1), ("y", 1)]) == [("x", 1), ("y", 1)]
assert sort_by_second([]) == []


# == sort_by_absolute_value, sort_by_magnitude, order_by_absolute
# numbers: items, values, nums
# - Return {numbers} sorted by absolute value; equal ones keep their order.
# - Sort {numbers} by their distance from zero, nearest first and stable.
# - Return the numbers in ascending order of their absolute values, ties in given order.
# - Sort a list of numbers as if none of them had a sign; equals keep their order.
# - Order {numbers} from the smallest to the largest absolute value, stably.
# ? Give {numbers} from those near zero to those far from it; ties stay as they are.
# ? Stable sort of {numbers} that ignores minus signs.
def sort_by_absolute_value(numbers: list[int]) -> list[int]:
    return sorted(numbers, key=abs)


def sort_by_absolute_value(numbers: list[int]) -> list[int]:
    return sorted(numbers, key=lambda number: abs(number))


assert sort_by_absolute_value([-5, 2, -1, 4]) == [-1, 2, 4, -5]
assert sort_by_absolute_value([3, -3]) == [3, -3]
assert sort_by_absolute_value([0]) == [0]
assert sort_by_absolute_value([]) == []


# == sort_ignoring_case, sort_case_insensitive, sort_words_ignoring_case
# words: strings, names, texts
# word: text, name
# - Return {words} in alphabetical order, ignoring upper and lower case.
# - Sort strings alphabetically without regard to case and return the list.
# - Return a list of {words} sorted as if all letters were lowercase.
# - Sort {words} case-insensitively in ascending order.
# - Return the strings in alphabetical order, where "B" comes behind "a".
# ? Order {words} as a dictionary does, capitals being the same as small letters.
# ? Give {words} from A to Z, whatever case their letters have.
def sort_ignoring_case(words: list[str]) -> list[str]:
    return sorted(words, key=str.lower)


def sort_ignoring_case(words: list[str]) -> list[str]:
    return sorted(words, key=lambda word: word.lower())


assert sort_ignoring_case(["banana", "Cherry", "apple"]) == ["apple", "banana", "Cherry"]
assert sort_ignoring_case(["b", "A"]) == ["A", "b"]
assert sort_ignoring_case([]) == []


# == sort_by_frequency, frequency_sort, order_by_frequency
# items: numbers, values, elements
# counts: tally, frequencies
# item: number, value
# - Return {items} sorted by how often they occur, most frequent first; ties ascend.
# - Sort a list by descending frequency of its items, equally frequent ones ascending.
# - Return all {items}, those that occur most often first, and smaller ones first in ties.
# - Sort {items} by their number of occurrences, highest first, then by value ascending.
# - Order {items} from the most to the least frequent, keeping repeats; ties by value.
# ? Give all {items} again, common ones before rare ones, equally common ones ascending.
# ? Put the values with the most copies first; where counts are equal, the lower value.
def sort_by_frequency(items: list[int]) -> list[int]:
    counts = Counter(items)
    return sorted(items, key=lambda item: (-counts[item], item))


def sort_by_frequency(items: list[int]) -> list[int]:
    counts = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    result = []
    for item in sorted(counts, key=lambda x: (-counts[x], x)):
        result.extend([item] * counts[item])
    return result


assert sort_by_frequency([1, 2, 2, 3, 3, 3]) == [3, 3, 3, 2, 2, 1]
assert sort_by_frequency([5, 4, 5, 4, 9]) == [4, 4, 5, 5, 9]
assert sort_by_frequency([2]) == [2]
assert sort_by_frequency([]) == []


# == evens_first, sort_evens_first, even_before_odd
# numbers: items, values, nums
# even: evens, front
# odd: odds, back
# - Return {numbers} with all even ones first; both groups keep their order.
# - Move the even numbers before the odd ones without changing the order inside a group.
# - Return a list of the even {numbers} followed by the odd ones, each in given order.
# - Put even numbers first and odd numbers last, stably, and return the list.
# - Rearrange {numbers}: the even ones in their order, then the odd ones in theirs.
# ? Give what 2 divides first and all other {numbers} after it, otherwise unchanged.
# ? Order {numbers} by parity, even before odd, as a stable sort does.
def evens_first(numbers: list[int]) -> list[int]:
    even = [number for number in numbers if number % 2 == 0]
    odd = [number for number in numbers if number % 2 != 0]
    return even + odd


def evens_first(numbers: list[int]) -> list[int]:
    return sorted(numbers, key=lambda number: number % 2)


assert evens_first([3, 2, 1, 4]) == [2, 4, 3, 1]
assert evens_first([1, 3]) == [1, 3]
assert evens_first([0, 5, 6]) == [0, 6, 5]
assert evens_first([]) == []


# == sort_colors, dutch_national_flag, sort_zeros_ones_twos
# colors: items, numbers, values
# low: left, start
# mid: i, current
# high: right, stop
# - Sort a list of the numbers 0, 1 and 2 and return it.
# - Return {colors}, which are only 0, 1 and 2, in ascending order.
# - Sort zeros, ones and twos with the Dutch national flag algorithm; return the list.
# - Return the list with all 0s first, then the 1s, then the 2s.
# - Put the zeros before the ones and those before the twos, and return {colors}.
# ? Order a list that holds nothing but 0, 1 and 2, and give it back.
# ? Arrange the 0s, 1s and 2s of {colors} as a flag with three stripes; return the list.
def sort_colors(colors: list[int]) -> list[int]:
    low, mid, high = 0, 0, len(colors) - 1
    while mid <= high:
        if colors[mid] == 0:
            colors[low], colors[mid] = colors[mid], colors[low]
            low += 1
            mid += 1
        elif colors[mid] == 1:
            mid += 1
        else:
            colors[mid], colors[high] = colors[high], colors[mid]
            high -= 1
    return colors


def sort_colors(colors: list[int]) -> list[int]:
    return [0] * colors.count(0) + [1] * colors.count(1) + [2] * colors.count(2)


assert sort_colors([2, 0, 2, 1, 1, 0]) == [0, 0, 1, 1, 2, 2]
assert sort_colors([1]) == [1]
assert sort_colors([2, 1]) == [1, 2]
assert sort_colors([]) == []


# == sorted_indices, argsort, sort_order
# items: numbers, values, elements
# i: index, position
# - Return the indices of {items} in the order that sorts them ascending.
# - Return a list of positions, that of the smallest item first; ties by position.
# - Compute the indices that would sort {items} in ascending order, stably.
# - Sort the indices of {items} by the items that they belong to, ascending.
# - Return where the smallest item is, then the next one and so on, as a list of indices.
# ? In which order of indices do {items} ascend? Equal ones keep their order.
# ? Give the list of positions at which the sorted {items} stand.
def sorted_indices(items: list[int]) -> list[int]:
    return sorted(range(len(items)), key=lambda i: items[i])


def sorted_indices(items: list[int]) -> list[int]:
    pairs = sorted((item, i) for i, item in enumerate(items))
    return [i for _, i in pairs]


assert sorted_indices([30, 10, 20]) == [1, 2, 0]
assert sorted_indices([5, 5, 1]) == [2, 0, 1]
assert sorted_indices([7]) == [0]
assert sorted_indices([]) == []


# == count_inversions, inversion_count, number_of_inversions
# items: numbers, values, arr
# count: total, inversions
# - Return the number of inversions: pairs whose earlier item is greater.
# - Count the pairs of positions i < j with {items}[i] > {items}[j].
# - Count how many pairs of {items} are in the wrong order for an ascending list.
# - Return how many pairs in {items} have the larger item first.
# - Compute the number of pairs that are out of ascending order.
# ? How many times does an item stand somewhere before a smaller one?
# ? Give the number of swaps of neighbours that bubble sort needs for {items}.
def count_inversions(items: list[int]) -> int:
    count = 0
    for i in range(len(items)):
        for j in range(i + 1, len(items)):
            if items[i] > items[j]:
                count += 1
    return count


def count_inversions(items: list[int]) -> int:
    return sum(1 for i, a in enumerate(items) for b in items[i + 1 :] if a > b)


assert count_inversions([1, 2, 3]) == 0
assert count_inversions([3, 2, 1]) == 3
assert count_inversions([2, 4, 1, 3]) == 3
assert count_inversions([]) == 0
