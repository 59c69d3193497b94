"""Recursion and dynamic programming."""

from functools import lru_cache


# == recursive_power, power_recursive, pow_recursive
# base: x, number, b
# exponent: n, times, e
# half: root, part
# - Return {base} to the power of {exponent}, computed by recursion.
# - Raise {base} to a non-negative integer {exponent} recursively.
# - Compute {base} ** {exponent} with a recursive function.
# - Use recursion to calculate {base} to the power of {exponent}.
# - Calculate a power recursively; any number to the power of 0 is 1.
# ? Give the {exponent}-th power of {base} with a function that calls itself.
# ? Without a loop, multiply {base} with itself so that it occurs {exponent} times.
def recursive_power(base: float, exponent: int) -> float:
    if exponent == 0:
        return 1
    return base * recursive_power(base, exponent - 1)


def recursive_power(base: float, exponent: int) -> float:
    if exponent == 0:
        return 1
    half = recursive_power(base, exponent // 2)
    if exponent % 2 == 0:
        return half * half
    return half * half * base


assert recursive_power(2, 10) == 1024
assert recursive_power(7, 0) == 1
assert recursive_power(-2, 3) == -8
assert recursive_power(5, 1) == 5


# == recursive_sum, sum_recursive, sum_list_recursively
# numbers: items, values, nums
# - Return the sum of {numbers}, computed by recursion.
# - Add up a list of numbers recursively.
# - Sum {numbers} with a recursive function; an empty list gives 0.
# - Use recursion to calculate the sum of a list.
# - Compute the total of {numbers} as the first one plus the sum of the rest.
# ? Give the total of a list with a function that calls itself.
# ? Without a loop, find what all {numbers} add up to.
def recursive_sum(numbers: list[int]) -> int:
    if not numbers:
        return 0
    return numbers[0] + recursive_sum(numbers[1:])


def recursive_sum(numbers: list[int]) -> int:
    if len(numbers) == 0:
        return 0
    return recursive_sum(numbers[:-1]) + numbers[-1]


assert recursive_sum([1, 2, 3]) == 6
assert recursive_sum([5]) == 5
assert recursive_sum([-1, 1]) == 0
assert recursive_sum([]) == 0


# == recursive_max, max_recursive, find_max_recursively
# numbers: items, values, nums
# rest: others, remaining
# - Return the largest of {numbers}, found by recursion.
# - Find the maximum of a list recursively.
# - Use recursion to find the greatest number in a list that is not empty.
# - Return the maximum of the first number and the maximum of the rest.
# - Compute the largest item of {numbers} with a recursive function.
# ? Give the greatest of {numbers} with a function that calls itself.
# ? Without a loop, find the highest value in the list.
def recursive_max(numbers: list[int]) -> int:
    if len(numbers) == 1:
        return numbers[0]
    rest = recursive_max(numbers[1:])
    return numbers[0] if numbers[0] > rest else rest


def recursive_max(numbers: list[int]) -> int:
    if len(numbers) == 1:
        return numbers[0]
    return max(numbers[0], recursive_max(numbers[1:]))


assert recursive_max([3, 9, 2]) == 9
assert recursive_max([4]) == 4
assert recursive_max([-5, -2, -9]) == -2
assert recursive_max([1, 1]) == 1


# == recursive_reverse, reverse_recursively, reverse_string_recursive
# text: s, string, word
# - Return {text} reversed, by means of recursion.
# - Reverse a string recursively.
# - Use recursion to turn {text} around.
# - Return the reverse of the rest of {text} followed by its first character.
# - Reverse the characters of {text} with a recursive function.
# ? Give {text} from back to front with a function that calls itself.
# ? Without a loop or a slice with a step, write {text} backwards.
def recursive_reverse(text: str) -> str:
    if len(text) <= 1:
        return text
    return recursive_reverse(text[1:]) + text[0]


def recursive_reverse(text: str) -> str:
    if text == "":
        return ""
    return text[-1] + recursive_reverse(text[:-1])


assert recursive_reverse("hello") == "olleh"
assert recursive_reverse("ab") == "ba"
assert recursive_reverse("x") == "x"
assert recursive_reverse("") == ""


# == recursive_palindrome, is_palindrome_recursive, palindrome_by_recursion
# text: s, string, word
# - Return True if {text} is a palindrome, checked by recursion.
# - Check recursively whether {text} reads the same forwards and backwards.
# - Use recursion to test if {text} is a palindrome.
# - Compare the first and the last character of {text}, then recurse into what is between.
# - Determine with a recursive function whether {text} is a palindrome.
# ? Say whether {text} equals its reverse, with a function that calls itself.
# ? Without a loop, find out if {text} stays the same when it is read backwards.
def recursive_palindrome(text: str) -> bool:
    if len(text) < 2:
        return True
    if text[0] != text[-1]:
        return False
    return recursive_palindrome(text[1:-1])


def recursive_palindrome(text: str) -> bool:
    if len(text) <= 1:
        return True
    return text[0] == text[-1] and recursive_palindrome(text[1:-1])


assert recursive_palindrome("level")
assert recursive_palindrome("abba")
assert recursive_palindrome("")
assert not recursive_palindrome("ab")
assert not recursive_palindrome("abca")


# == hanoi, tower_of_hanoi, hanoi_moves
# n: disks, height
# source: origin, start
# target: goal, destination
# spare: helper, other
# - Return the moves that carry {n} disks from {source} to {target} as a list of pairs.
# - Solve the Towers of Hanoi: list (from, to) pairs that bring {n} disks to {target}.
# - List the pairs (from peg, to peg) of the shortest solution of the Tower of Hanoi.
# - Return all moves of the Tower of Hanoi with {n} disks as tuples of two pegs.
# - Move {n} disks from {source} to {target} via {spare}; return a list of (from, to).
# ? Which moves, as (from, to) tuples, bring a tower of {n} disks to the peg {target}?
# ? Give the fewest moves, each a pair of pegs, that solve the Tower of Hanoi.
def hanoi(n: int, source: str, target: str, spare: str) -> list[tuple[str, str]]:
    if n == 0:
        return []
    moves = hanoi(n - 1, source, spare, target)
    moves.append((source, target))
    return moves + hanoi(n - 1, spare, target, source)


def hanoi(n: int, source: str, target: str, spare: str) -> list[tuple[str, str]]:
    if n == 0:
        return []
    before = hanoi(n - 1, source, spare, target)
    after = hanoi(n - 1, spare, target, source)
    return before + [(source, target)] + after


assert hanoi(0, "A", "C", "B") == []
assert hanoi(1, "A", "C", "B") == [("A", "C")]
assert hanoi(2, "A", "C", "B") == [("A", "B"), ("A", "C"), ("B", "C")]
assert len(hanoi(5, "A", "C", "B")) == 31


# == hanoi_move_count, count_hanoi_moves, hanoi_steps
# n: disks, height
# - Return how many moves the Tower of Hanoi with {n} disks takes at least.
# - Compute the smallest number of moves for a Tower of Hanoi of {n} disks.
# - Count the moves that are needed to solve the Towers of Hanoi with {n} disks.
# - Return the number of moves of the shortest solution of Hanoi with {n} disks.
# - Calculate the minimum number of moves that bring {n} disks to another peg.
# ? How often must a disk be moved to carry a Hanoi tower of {n} disks over?
# ? Give 2 to the power of {n}, minus 1: the moves of the Tower of Hanoi.
def hanoi_move_count(n: int) -> int:
    if n == 0:
        return 0
    return 2 * hanoi_move_count(n - 1) + 1


def hanoi_move_count(n: int) -> int:
    return 2**n - 1


assert hanoi_move_count(0) == 0
assert hanoi_move_count(1) == 1
assert hanoi_move_count(3) == 7
assert hanoi_move_count(10) == 1023


# == permutations, all_permutations, permute
# items: elements, values, numbers
# result: found, orders
# rest: others, remaining
# - Return all permutations of {items} as a list of lists.
# - List every order in which {items} can be arranged, each one a list.
# - Generate all permutations of a list of different items, as lists.
# - Return a list of lists with all arrangements of {items}.
# - Compute every possible ordering of {items}; each ordering is a list.
# ? In which orders can the distinct {items} stand? Return them as lists.
# ? Give each rearrangement of {items} once, all of them in a list of lists.
def permutations(items: list[int]) -> list[list[int]]:
    if not items:
        return [[]]
    result = []
    for i in range(len(items)):
        rest = items[:i] + items[i + 1 :]
        for order in permutations(rest):
            result.append([items[i]] + order)
    return result


def permutations(items: list[int]) -> list[list[int]]:
    if len(items) <= 1:
        return [items[:]]
    return [
        [items[i]] + order
        for i in range(len(items))
        for order in permutations(items[:i] + items[i + 1 :])
    ]


def permutations(items: list[int]) -> list[list[int]]:
    result = []

    def extend(chosen: list[int], rest: list[int]) -> None:
        if not rest:
            result.append(chosen)
            return
        for i in range(len(rest)):
            extend(chosen + [rest[i]], rest[:i] + rest[i + 1 :])

    extend([], items)
    return result


assert sorted(permutations([1, 2])) == [[1, 2], [2, 1]]
assert len(permutations([1, 2, 3, 4])) == 24
assert sorted(permutations([3, 1, 2]))[0] == [1, 2, 3]
assert permutations([7]) == [[7]]
assert permutations([]) == [[]]


# == string_permutations, permute_string, anagrams_of
# text: s, string, word
# result: found, arrangements
# rest: others, remaining
# - Return a sorted list of the different permutations of the characters of {text}.
# - List all distinct arrangements of the letters of {text} in alphabetical order.
# - Return every different string made of all characters of {text}, sorted.
# - Generate the permutations of a string, sorted and without repeats.
# - Find all distinct rearrangements of {text} and return them as a sorted list.
# ? Which strings can be made by reordering {text}? Give each once, in sorted order.
# ? Collect the anagrams of {text}, meaningful or not, as a sorted list without repeats.
def string_permutations(text: str) -> list[str]:
    if len(text) <= 1:
        return [text]
    result = set()
    for i in range(len(text)):
        rest = text[:i] + text[i + 1 :]
        for order in string_permutations(rest):
            result.add(text[i] + order)
    return sorted(result)


assert string_permutations("ab") == ["ab", "ba"]
assert string_permutations("aab") == ["aab", "aba", "baa"]
assert string_permutations("cab") == ["abc", "acb", "bac", "bca", "cab", "cba"]
assert string_permutations("x") == ["x"]


# == subsets, power_set, all_subsets
# items: elements, values, numbers
# result: found, sets
# rest: others, without
# - Return all subsets of {items} as a list of lists.
# - List every subset of {items}, from the empty one to all of them, as lists.
# - Compute the power set of a list of different items, as a list of lists.
# - Return a list of all lists that can be made by leaving out some of {items}.
# - Generate the power set of {items}; each subset is a list in the given order.
# ? Which selections of {items}, none and all included, are there? Return lists.
# ? Give each subset of the distinct {items} once, as a list of lists.
def subsets(items: list[int]) -> list[list[int]]:
    if not items:
        return [[]]
    rest = subsets(items[1:])
    return rest + [[items[0]] + subset for subset in rest]


def subsets(items: list[int]) -> list[list[int]]:
    result = [[]]
    for item in items:
        result += [subset + [item] for subset in result]
    return result


assert sorted(subsets([1, 2])) == [[], [1], [1, 2], [2]]
assert len(subsets([1, 2, 3, 4])) == 16
assert sorted(subsets([5])) == [[], [5]]
assert subsets([]) == [[]]


# == combinations, all_combinations, choose_items
# items: elements, values, numbers
# k: size, count
# result: found, groups
# - Return all combinations of {k} of the {items} as a list of lists.
# - List every way to choose {k} of the {items}; each one is a list in given order.
# - Generate the combinations of {k} different positions of {items}, as lists.
# - Return a list of all lists with {k} of the {items}, in their order.
# - Compute all selections of exactly {k} items, without regard to order, as lists.
# ? Which groups of {k} can be picked from {items}? Return them as lists.
# ? Give each subset of {items} that has {k} members, as a list in the given order.
def combinations(items: list[int], k: int) -> list[list[int]]:
    if k == 0:
        return [[]]
    result = []
    for i in range(len(items)):
        for tail in combinations(items[i + 1 :], k - 1):
            result.append([items[i]] + tail)
    return result


def combinations(items: list[int], k: int) -> list[list[int]]:
    if k == 0:
        return [[]]
    if not items:
        return []
    first, rest = items[0], items[1:]
    taken = [[first] + tail for tail in combinations(rest, k - 1)]
    return taken + combinations(rest, k)


def combinations(items: list[int], k: int) -> list[list[int]]:
    result = []

    def extend(start: int, chosen: list[int]) -> None:
        if len(chosen) == k:
            result.append(chosen)
            return
        for i in range(start, len(items)):
            extend(i + 1, chosen + [items[i]])

    extend(0, [])
    return result


assert sorted(combinations([1, 2, 3], 2)) == [[1, 2], [1, 3], [2, 3]]
assert sorted(combinations([4, 5], 1)) == [[4], [5]]
assert combinations([1, 2], 0) == [[]]
assert combinations([1, 2], 3) == []
assert len(combinations([1, 2, 3, 4, 5], 3)) == 10


# == combination_sum, combinations_with_sum, find_combination_sums
# numbers: candidates, values, nums
# target: total, goal
# result: found, answers
# - Return all sorted lists of {numbers}, repeats allowed, that add up to {target}.
# - Find every combination of {numbers} with the sum {target}; each may be used again.
# - List the ascending lists of numbers from {numbers} that sum to {target}; reuse allowed.
# - Return the different ways, as sorted lists, to reach {target} with reusable {numbers}.
# - Find all combinations, as ascending lists, of the positive {numbers} summing to {target}.
# ? Which ascending lists of {numbers}, any of them repeated, have the sum {target}?
# ? Write {target} as a sum of {numbers} in all ways, each a sorted list; repeats allowed.
def combination_sum(numbers: list[int], target: int) -> list[list[int]]:
    numbers = sorted(numbers)
    result = []

    def extend(start: int, chosen: list[int], left: int) -> None:
        if left == 0:
            result.append(chosen)
            return
        for i in range(start, len(numbers)):
            if numbers[i] > left:
                break
            extend(i, chosen + [numbers[i]], left - numbers[i])

    extend(0, [], target)
    return result


assert sorted(combination_sum([2, 3, 6, 7], 7)) == [[2, 2, 3], [7]]
assert sorted(combination_sum([2, 3, 5], 8)) == [[2, 2, 2, 2], [2, 3, 3], [3, 5]]
assert combination_sum([2], 1) == []


# == flatten_nested, flatten_deep, deep_flatten
# nested: items, data, tree
# result: flat, found
# item: element, part
# - Return a flat list of everything in a list that is nested to any depth.
# - Flatten a list of lists of any depth into one list.
# - Flatten {nested} recursively and return a list without inner lists.
# - Return all items of {nested} in order, with lists inside lists unpacked.
# - Unpack lists within lists, however deep, into a single flat list.
# ? Give the items of {nested} in order without any inner brackets, at any depth.
# ? Remove every level of nesting from a list and return what is left.
def flatten_nested(nested: list) -> list:
    result = []
    for item in nested:
        if isinstance(item, list):
            result.extend(flatten_nested(item))
        else:
            result.append(item)
    return result


def flatten_nested(nested: list) -> list:
    if not nested:
        return []
    first, rest = nested[0], nested[1:]
    if isinstance(first, list):
        return flatten_nested(first) + flatten_nested(rest)
    return [first] + flatten_nested(rest)


assert flatten_nested([1, [2, [3, [4]]], 5]) == [1, 2, 3, 4, 5]
assert flatten_nested([[], [[]]]) == []
assert flatten_nested(["a", ["b"]]) == ["a", "b"]
assert flatten_nested([]) == []


# == sum_nested, nested_sum, deep_sum
# nested: items, data, tree
# total: result, amount
# item: element, part
# - Return the sum of all numbers in a list that is nested to any depth.
# - Add up all numbers in nested lists of any depth.
# - Sum a nested list recursively.
# - Compute the total of the numbers in {nested} and in all lists inside it.
# - Return what the numbers in {nested} add up to, however deep they are.
# ? Give the total of every number in the list, in its inner lists, and in theirs.
# ? Ignore the brackets inside {nested} and add its numbers.
def sum_nested(nested: list) -> int:
    total = 0
    for item in nested:
        if isinstance(item, list):
            total += sum_nested(item)
        else:
            total += item
    return total


def sum_nested(nested: list) -> int:
    return sum(sum_nested(item) if isinstance(item, list) else item for item in nested)


assert sum_nested([1, [2, [3]], 4]) == 10
assert sum_nested([[], [[5]]]) == 5
assert sum_nested([-1, [1]]) == 0
assert sum_nested([]) == 0


# == nested_depth, list_depth, max_depth_of_list
# nested: items, data, tree
# depth: deepest, level
# item: element, part
# - Return how deep the lists in {nested} are nested; a flat list has depth 1.
# - Compute the depth of a nested list, where [] and [1] have depth 1.
# - Find the deepest level of lists inside lists; a flat list counts as 1.
# - Return the depth of {nested}: 1 for a flat or empty list, 2 for [[1]] and so on.
# - Calculate how many levels of lists {nested} has, itself included.
# ? At most how many brackets are open at once when {nested} is written down?
# ? Give 1 plus the greatest depth among the inner lists (0 if there are none).
def nested_depth(nested: list) -> int:
    depth = 0
    for item in nested:
        if isinstance(item, list):
            depth = max(depth, nested_depth(item))
    return depth + 1


def nested_depth(nested: list) -> int:
    depths = [nested_depth(item) for item in nested if isinstance(item, list)]
    return 1 + max(depths, default=0)


assert nested_depth([]) == 1
assert nested_depth([1, 2]) == 1
assert nested_depth([1, [2, [3]]]) == 3
assert nested_depth([[1], [2]]) == 2


# == ackermann, ackermann_function, compute_ackermann
# m: a, first
# n: b, second
# - Return the value of the Ackermann function for {m} and {n}.
# - Compute the Ackermann function A({m}, {n}).
# - Calculate Ackermann's function of two non-negative integers by recursion.
# - Evaluate the two-argument Ackermann function at {m} and {n}.
# - Return A({m}, {n}), where A is the Ackermann function.
# ? Give the number that the function of Ackermann and Peter yields for {m} and {n}.
# ? Work out A of {m} and {n}, with A(0, y) = y + 1, A(x, 0) = A(x - 1, 1).
def ackermann(m: int, n: int) -> int:
    if m == 0:
        return n + 1
    if n == 0:
        return ackermann(m - 1, 1)
    return ackermann(m - 1, ackermann(m, n - 1))


assert ackermann(0, 0) == 1
assert ackermann(1, 2) == 4
assert ackermann(2, 3) == 9
assert ackermann(3, 1) == 13


# == fibonacci_memo, fib_memo, memoized_fibonacci
# n: index, k
# memo: cache, known
# - Return the {n}-th Fibonacci number (F(0) = 0, F(1) = 1) by recursion with memoization.
# - Compute the Fibonacci number at index {n} recursively and remember earlier results.
# - Calculate the {n}-th Fibonacci number from 0, 1, 1, ... with memoization.
# - Return Fibonacci number {n}, counting from zero, with a cache that makes it fast.
# - Use memoized recursion to find the Fibonacci number with index {n}.
# ? Give F({n}) of the Fibonacci series by recursion that computes nothing twice.
# ? Find Fibonacci number {n}, with F(0) = 0, quickly enough for {n} = 80.
def fibonacci_memo(n: int, memo: dict[int, int] | None = None) -> int:
    if memo is None:
        memo = {}
    if n < 2:
        return n
    if n not in memo:
        memo[n] = fibonacci_memo(n - 1, memo) + fibonacci_memo(n - 2, memo)
    return memo[n]


assert fibonacci_memo(0) == 0
assert fibonacci_memo(1) == 1
assert fibonacci_memo(10) == 55
assert fibonacci_memo(80) == 23416728348467685


# == cached_fibonacci, fibonacci_cached, fib_cached
# n: index, k
# - Return the {n}-th Fibonacci number, with results cached by a decorator.
# - Compute the Fibonacci number at index {n} with a cached recursive function.
# - Calculate F({n}), where F(0) = 0 and F(1) = 1, using lru_cache.
# - Return the Fibonacci number with index {n}, fast because of a cache decorator.
# - Use functools to cache a recursive Fibonacci function, where index 0 gives 0.
# ? Give F({n}) of the series 0, 1, 1, 2, ... from a function decorated with a cache.
# ? Find Fibonacci number {n}, counted from zero, with a decorator against repeated work.
@lru_cache(maxsize=None)
def cached_fibonacci(n: int) -> int:
    if n < 2:
        return n
    return cached_fibonacci(n - 1) + cached_fibonacci(n - 2)


assert cached_fibonacci(0) == 0
assert cached_fibonacci(1) == 1
assert cached_fibonacci(10) == 55
assert cached_fibonacci(60) == 1548008755920


# == climb_stairs, climbing_stairs, count_stair_ways
# n: steps, height
# a: previous, before
# b: current, now
# - Return the number of ways to climb {n} stairs, taking 1 or 2 at a time.
# - Count how many ways lead up {n} stairs with steps of one or two.
# - Compute in how many ways {n} stairs can be climbed by one or two at once.
# - Return how many sequences of 1s and 2s have the sum {n}.
# - Calculate the number of different ways to go up {n} stairs in steps of 1 and 2.
# ? How many ways are there to the top of {n} stairs for someone who takes one or two?
# ? Give the count of ordered sums of ones and twos that make {n}.
def climb_stairs(n: int) -> int:
    a, b = 1, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def climb_stairs(n: int) -> int:
    if n <= 1:
        return 1
    ways = [1] * (n + 1)
    for i in range(2, n + 1):
        ways[i] = ways[i - 1] + ways[i - 2]
    return ways[n]


assert climb_stairs(1) == 1
assert climb_stairs(2) == 2
assert climb_stairs(3) == 3
assert climb_stairs(10) == 89


# ==! count_paths, unique_paths, grid_paths
# rows: height, m
# columns: width, n
# - Return the number of paths from the top left to the bottom right cell of a grid.
# - Count the ways through a grid of {rows} by {columns} cells, going right or down.
# - Compute how many paths lead to the opposite corner of a grid, only right and down.
# - Count the paths between opposite corner cells of a grid, moving only right or down.
# - Return how many ways go right and down from the first cell of a grid to the last.
# ? On how many routes, only right and down, does a robot cross {rows} x {columns} cells?
# ? Give the number of right-and-down paths from corner cell to corner cell of a grid.
def count_paths(rows: int, columns: int) -> int:
    if rows == 1 or columns == 1:
        return 1
    return count_paths(rows - 1, columns) + count_paths(rows, columns - 1)


def count_paths(rows: int, columns: int) -> int:
    counts = [1] * columns
    for _ in range(rows - 1):
        for column in range(1, columns):
            counts[column] += counts[column - 1]
    return counts[-1]


assert count_paths(1, 1) == 1
assert count_paths(2, 2) == 2
assert count_paths(3, 7) == 28
assert count_paths(1, 5) == 1


# == min_path_sum, cheapest_path, minimum_path_sum
# grid: matrix, costs, table
# row: r, y
# column: c, x
# - Return the smallest sum of a path from the top left to the bottom right of {grid}.
# - Find the cheapest way through {grid}, going only right or down; return its sum.
# - Compute the minimum path sum of {grid} from the first to the last cell, right and down.
# - Return the least total of the cells on a right-and-down path through {grid}.
# - Calculate the minimal cost of a path of right and down moves across {grid}.
# ? What do the numbers on the cheapest right-and-down path of {grid} add up to?
# ? Going right or down from corner to corner, what is the lowest possible sum of cells?
def min_path_sum(grid: list[list[int]]) -> int:
    best = [row[:] for row in grid]
    for r in range(len(grid)):
        for c in range(len(grid[0])):
            before = []
            if r > 0:
                before.append(best[r - 1][c])
            if c > 0:
                before.append(best[r][c - 1])
            best[r][c] += min(before, default=0)
    return best[-1][-1]


def min_path_sum(grid: list[list[int]]) -> int:
    best = [float("inf")] * len(grid[0])
    best[0] = 0
    for row in grid:
        best[0] += row[0]
        for column in range(1, len(row)):
            best[column] = min(best[column], best[column - 1]) + row[column]
    return best[-1]


assert min_path_sum([[1, 3, 1], [1, 5, 1], [4, 2, 1]]) == 7
assert min_path_sum([[1, 2], [5, 1]]) == 4
assert min_path_sum([[9]]) == 9
assert min_path_sum([[1, 2, 3]]) == 6


# == generate_parentheses, balanced_parentheses, all_parentheses
# n: count, pairs
# result: found, answers
# - Return all strings of {n} pairs of balanced parentheses.
# - Generate every well-formed string with {n} pairs of round brackets, as a list.
# - List all ways to write {n} opening and {n} closing parentheses that match.
# - Return a list of all balanced strings made of {n} "(" and {n} ")".
# - Generate all valid combinations of {n} pairs of parentheses.
# ? Which strings of {n} left and {n} right round brackets are balanced? Return a list.
# ? Give each correct arrangement of {n} pairs of "(" and ")" once, in a list.
def generate_parentheses(n: int) -> list[str]:
    result = []

    def extend(text: str, opened: int, closed: int) -> None:
        if len(text) == 2 * n:
            result.append(text)
            return
        if opened < n:
            extend(text + "(", opened + 1, closed)
        if closed < opened:
            extend(text + ")", opened, closed + 1)

    extend("", 0, 0)
    return result


def generate_parentheses(n: int) -> list[str]:
    if n == 0:
        return [""]
    result = []
    for i in range(n):
        for inner in generate_parentheses(i):
            for after in generate_parentheses(n - 1 - i):
                result.append("(" + inner + ")" + after)
    return result


assert generate_parentheses(0) == [""]
assert generate_parentheses(1) == ["()"]
assert sorted(generate_parentheses(2)) == ["(())", "()()"]
assert len(generate_parentheses(4)) == 14


# == binary_strings, all_binary_strings, generate_binary_strings
# n: length, size
# shorter: rest, previous
# - Return all strings of {n} zeros and ones in ascending order.
# - List every binary string of length {n}, sorted.
# - Generate all binary strings with {n} digits, from all zeros to all ones.
# - Return a sorted list of the strings of length {n} made of "0" and "1".
# - Build all combinations of {n} bits as strings in ascending order.
# ? Which strings of {n} characters consist of 0 and 1 only? Give them in order.
# ? Count in binary with {n} digits from the lowest to the highest string; list them all.
def binary_strings(n: int) -> list[str]:
    if n == 0:
        return [""]
    shorter = binary_strings(n - 1)
    return ["0" + s for s in shorter] + ["1" + s for s in shorter]


def binary_strings(n: int) -> list[str]:
    result = [""]
    for _ in range(n):
        result = [prefix + bit for prefix in result for bit in "01"]
    return result


assert binary_strings(0) == [""]
assert binary_strings(1) == ["0", "1"]
assert binary_strings(2) == ["00", "01", "10", "11"]
assert len(binary_strings(5)) == 32


# == gray_code, gray_codes, generate_gray_code
# n: bits, width
# shorter: previous, half
# - Return the Gray code of {n} bits as a list of strings, starting with all zeros.
# - Generate the reflected Gray code with {n} bits as strings of 0 and 1.
# - List the {n}-bit binary reflected Gray code, beginning with zeros, as strings.
# - Build the standard Gray code of {n} bits by reflection; return a list of strings.
# - Return all {n}-bit strings in Gray code order: neighbours differ in one bit.
# ? Give the usual (reflected) Gray code of width {n} as strings, all zeros first.
# ? Order the strings of {n} bits by mirroring, so that one bit changes at each step.
def gray_code(n: int) -> list[str]:
    if n == 0:
        return [""]
    shorter = gray_code(n - 1)
    return ["0" + code for code in shorter] + ["1" + code for code in reversed(shorter)]


def gray_code(n: int) -> list[str]:
    codes = [""]
    for _ in range(n):
        codes = ["0" + code for code in codes] + ["1" + code for code in codes[::-1]]
    return codes


assert gray_code(1) == ["0", "1"]
assert gray_code(2) == ["00", "01", "11", "10"]
assert gray_code(3)[:5] == ["000", "001", "011", "010", "110"]
assert len(gray_code(5)) == 32


# == count_partitions, integer_partitions, partition_count
# n: number, value
# ways: counts, table
# part: size, piece
# - Return in how many ways {n} is a sum of positive integers, in any order.
# - Count the partitions of the integer {n}.
# - Compute the number of integer partitions of {n}; the order of parts is irrelevant.
# - Return how many unordered sums of positive integers equal {n}.
# - Count the ways to split {n} into positive whole parts, regardless of order.
# ? How many multisets of positive integers add up to {n}?
# ? Give the partition number p({n}) of number theory.
def count_partitions(n: int) -> int:
    ways = [1] + [0] * n
    for part in range(1, n + 1):
        for total in range(part, n + 1):
            ways[total] += ways[total - part]
    return ways[n]


def count_with_parts_up_to(total: int, largest: int) -> int:
    if total == 0:
        return 1
    if total < 0 or largest == 0:
        return 0
    without = count_with_parts_up_to(total, largest - 1)
    return without + count_with_parts_up_to(total - largest, largest)


def count_partitions(n: int) -> int:
    return count_with_parts_up_to(n, n)


assert count_partitions(0) == 1
assert count_partitions(1) == 1
assert count_partitions(4) == 5
assert count_partitions(10) == 42


# == coin_change_ways, count_change, count_coin_ways
# coins: denominations, values
# amount: total, target
# ways: counts, table
# - Return in how many ways {amount} can be paid with {coins}, in any order.
# - Count the combinations of {coins} that make {amount}; each coin may be used again.
# - Compute the number of ways to make change for {amount}, regardless of order.
# - Return how many multisets of {coins} have the sum {amount}.
# - Count how many different combinations of reusable {coins} add up to {amount}.
# ? How many ways, order aside, are there to pay {amount} with any number of {coins}?
# ? Give the number of unordered sums of the values in {coins} that equal {amount}.
def coin_change_ways(coins: list[int], amount: int) -> int:
    ways = [1] + [0] * amount
    for coin in coins:
        for value in range(coin, amount + 1):
            ways[value] += ways[value - coin]
    return ways[amount]


def coin_change_ways(coins: list[int], amount: int) -> int:
    if amount == 0:
        return 1
    if amount < 0 or not coins:
        return 0
    with_first = coin_change_ways(coins, amount - coins[0])
    return with_first + coin_change_ways(coins[1:], amount)


assert coin_change_ways([1, 2, 5], 5) == 4
assert coin_change_ways([2], 3) == 0
assert coin_change_ways([3, 5], 0) == 1
assert coin_change_ways([1, 5, 10, 25], 30) == 18


# == coin_change, min_coins, fewest_coins
# coins: denominations, values
# amount: total, target
# best: fewest, table
# - Return the fewest {coins} that make {amount}, or -1 if that is impossible.
# - Compute the minimum number of coins for {amount}, or -1 if none fit.
# - Find how few coins, each reusable, add up to {amount}; return -1 if they cannot.
# - Return the smallest number of {coins} whose sum is {amount}, or -1.
# - Calculate the least number of coins needed to pay {amount}; -1 means it cannot be done.
# ? With how few {coins}, used as often as needed, is {amount} paid? Else give -1.
# ? Give the size of the smallest multiset of {coins} worth {amount}, -1 if none exists.
def coin_change(coins: list[int], amount: int) -> int:
    best = [0] + [amount + 1] * amount
    for value in range(1, amount + 1):
        for coin in coins:
            if coin <= value:
                best[value] = min(best[value], best[value - coin] + 1)
    return best[amount] if best[amount] <= amount else -1


def coin_change(coins: list[int], amount: int) -> int:
    best = {0: 0}
    for value in range(1, amount + 1):
        counts = [best[value - coin] + 1 for coin in coins if value - coin in best]
        if counts:
            best[value] = min(counts)
    return best.get(amount, -1)


assert coin_change([1, 2, 5], 11) == 3
assert coin_change([2], 3) == -1
assert coin_change([1], 0) == 0
assert coin_change([1, 3, 4], 6) == 2


# == n_queens, count_queens, n_queens_count
# n: size, width
# row: r, y
# column: c, x
# - Return in how many ways {n} queens can stand on an {n} by {n} board in peace.
# - Count the solutions of the {n} queens problem.
# - Compute the number of ways to place {n} queens so that none attacks another.
# - Solve the problem of {n} queens and return the number of solutions.
# - Count the boards of size {n} with {n} queens, no two in one row, column or diagonal.
# ? How many peaceful arrangements of {n} queens does a board of that size have?
# ? Give the number of solutions of the queens puzzle for a board of width {n}.
def n_queens(n: int) -> int:
    def place(row: int, columns: set[int], falling: set[int], rising: set[int]) -> int:
        if row == n:
            return 1
        count = 0
        for column in range(n):
            if column in columns or row - column in falling or row + column in rising:
                continue
            count += place(
                row + 1, columns | {column}, falling | {row - column}, rising | {row + column}
            )
        return count

    return place(0, set(), set(), set())


def n_queens(n: int) -> int:
    queens = []

    def place(row: int) -> int:
        if row == n:
            return 1
        count = 0
        for column in range(n):
            if all(column != c and abs(column - c) != row - r for r, c in enumerate(queens)):
                queens.append(column)
                count += place(row + 1)
                queens.pop()
        return count

    return place(0)


assert n_queens(1) == 1
assert n_queens(2) == 0
assert n_queens(4) == 2
assert n_queens(6) == 4


# == edit_distance, levenshtein, levenshtein_distance
# a: first, source, s
# b: second, target, t
# previous: above, last_row
# current: row, this_row
# - Return the edit distance between the strings {a} and {b}.
# - Compute the Levenshtein distance between {a} and {b}.
# - Count the fewest insertions, deletions and substitutions that turn {a} into {b}.
# - Return how few single-character edits change {a} into {b}.
# - Calculate the minimum number of edits (insert, delete, replace) from {a} to {b}.
# ? How many characters must be inserted, deleted or replaced to get from {a} to {b}?
# ? Give the distance of two strings as Levenshtein defined it.
def edit_distance(a: str, b: str) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) + 1):
        table[i][0] = i
    for j in range(len(b) + 1):
        table[0][j] = j
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            cost = 0 if a[i - 1] == b[j - 1] else 1
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + cost)
    return table[-1][-1]


def edit_distance(a: str, b: str) -> int:
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            change = previous[j - 1] + (x != y)
            current.append(min(previous[j] + 1, current[j - 1] + 1, change))
        previous = current
    return previous[-1]


def edit_distance(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    if a[0] == b[0]:
        return edit_distance(a[1:], b[1:])
    deleted = edit_distance(a[1:], b)
    inserted = edit_distance(a, b[1:])
    replaced = edit_distance(a[1:], b[1:])
    return 1 + min(deleted, inserted, replaced)


assert edit_distance("kitten", "sitting") == 3
assert edit_distance("", "abc") == 3
assert edit_distance("same", "same") == 0
assert edit_distance("ab", "ba") == 2


# == lcs_length, length_of_lcs, common_subsequence_length
# a: first, left, s
# b: second, right, t
# table: lengths, grid
# - Return the length of the longest common subsequence of {a} and {b}.
# - Compute how long the longest subsequence is that both strings have.
# - Calculate the length of the longest common subsequence of two strings.
# - Find the greatest number of characters that {a} and {b} share in the same order.
# - Return the size of the longest sequence of characters contained in both, gaps allowed.
# ? How many characters does the longest subsequence of both {a} and {b} have?
# ? Deleting characters from {a} and {b} to make them equal, how many can be kept at most?
def lcs_length(a: str, b: str) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            if a[i - 1] == b[j - 1]:
                table[i][j] = table[i - 1][j - 1] + 1
            else:
                table[i][j] = max(table[i - 1][j], table[i][j - 1])
    return table[len(a)][len(b)]


def lcs_length(a: str, b: str) -> int:
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return lcs_length(a[:-1], b[:-1]) + 1
    return max(lcs_length(a[:-1], b), lcs_length(a, b[:-1]))


assert lcs_length("abcde", "ace") == 3
assert lcs_length("abc", "def") == 0
assert lcs_length("abc", "abc") == 3
assert lcs_length("", "abc") == 0


# == longest_common_subsequence, lcs, find_lcs
# a: first, left, s
# b: second, right, t
# best: longest, table
# - Return the longest common subsequence of {a} and {b} as a string.
# - Find the longest string that is a subsequence of both {a} and {b}.
# - Compute the longest subsequence that two strings have in common; return the string.
# - Return the longest string that is left of both after deleting some characters.
# - Find the longest common subsequence of two strings, empty if they share nothing.
# ? Which is the longest string whose characters occur in this order in {a} and in {b}?
# ? Give the text of the longest subsequence that is in both strings, gaps allowed.
def longest_common_subsequence(a: str, b: str) -> str:
    if not a or not b:
        return ""
    if a[0] == b[0]:
        return a[0] + longest_common_subsequence(a[1:], b[1:])
    x = longest_common_subsequence(a[1:], b)
    y = longest_common_subsequence(a, b[1:])
    return x if len(x) >= len(y) else y


def longest_common_subsequence(a: str, b: str) -> str:
    best = [[""] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) - 1, -1, -1):
        for j in range(len(b) - 1, -1, -1):
            if a[i] == b[j]:
                best[i][j] = a[i] + best[i + 1][j + 1]
            else:
                best[i][j] = max(best[i + 1][j], best[i][j + 1], key=len)
    return best[0][0]


assert longest_common_subsequence("abcde", "ace") == "ace"
assert longest_common_subsequence("stone", "longest") == "one"
assert longest_common_subsequence("abc", "xyz") == ""
assert longest_common_subsequence("", "abc") == ""


# == longest_increasing_subsequence, lis_length, length_of_lis
# numbers: items, values, nums
# lengths: best, table
# i: index, stop
# j: other, before
# - Return the length of the longest strictly increasing subsequence of {numbers}.
# - Compute how long the longest strictly increasing subsequence is.
# - Find the length of the longest subsequence in which each number is greater than before.
# - Return how many {numbers}, in order and strictly growing, can be picked at most.
# - Calculate the size of the longest subsequence of {numbers} that always rises.
# ? At most how many {numbers} remain if deleting others has to leave a rising list?
# ? Give the length of the longest part of the list, gaps allowed, that strictly grows.
def longest_increasing_subsequence(numbers: list[int]) -> int:
    lengths = [1] * len(numbers)
    for i in range(len(numbers)):
        for j in range(i):
            if numbers[j] < numbers[i]:
                lengths[i] = max(lengths[i], lengths[j] + 1)
    return max(lengths, default=0)


def longest_increasing_subsequence(numbers: list[int]) -> int:
    lengths = []
    for i, number in enumerate(numbers):
        shorter = [lengths[j] for j in range(i) if numbers[j] < number]
        lengths.append(1 + max(shorter, default=0))
    return max(lengths, default=0)


assert longest_increasing_subsequence([10, 9, 2, 5, 3, 7, 101, 18]) == 4
assert longest_increasing_subsequence([3, 3, 3]) == 1
assert longest_increasing_subsequence([1, 2, 3]) == 3
assert longest_increasing_subsequence([]) == 0


# == knapsack, knapsack_01, solve_knapsack
# weights: sizes, costs
# values: profits, prices
# capacity: limit, space
# best: table, most
# - Return the greatest total value of items whose total weight is at most {capacity}.
# - Solve the 0/1 knapsack problem and return the best total value.
# - Find the most valuable selection that weighs no more than {capacity}; return its value.
# - Compute the highest value that fits into a knapsack, each item being used at most once.
# - Return the maximum value of items, each taken or left, within {capacity}.
# ? What are the best items together worth that a bag for {capacity} can hold, each once?
# ? Choose items (never twice) of limited total weight; give the largest sum of {values}.
def knapsack(weights: list[int], values: list[int], capacity: int) -> int:
    best = [0] * (capacity + 1)
    for weight, value in zip(weights, values):
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]


def knapsack(weights: list[int], values: list[int], capacity: int) -> int:
    if not weights:
        return 0
    skipped = knapsack(weights[1:], values[1:], capacity)
    if weights[0] > capacity:
        return skipped
    taken = values[0] + knapsack(weights[1:], values[1:], capacity - weights[0])
    return max(skipped, taken)


def knapsack(weights: list[int], values: list[int], capacity: int) -> int:
    n = len(weights)
    table = [[0] * (capacity + 1) for _ in range(n + 1)]
    for i in range(1, n + 1):
        for room in range(capacity + 1):
            table[i][room] = table[i - 1][room]
            if weights[i - 1] <= room:
                taken = table[i - 1][room - weights[i - 1]] + values[i - 1]
                table[i][room] = max(table[i][room], taken)
    return table[n][capacity]


assert knapsack([1, 3, 4, 5], [1, 4, 5, 7], 7) == 9
assert knapsack([10, 20, 30], [60, 100, 120], 50) == 220
assert knapsack([5], [10], 4) == 0
assert knapsack([], [], 10) == 0


# == subset_sum, has_subset_sum, can_sum_to
# numbers: items, values, nums
# target: total, goal
# sums: reachable, found
# - Return True if some of the {numbers} add up to {target}.
# - Check whether a subset of {numbers} has the sum {target}.
# - Test if {target} is the sum of some {numbers}, each used at most once.
# - Determine whether {numbers} have a subset that sums to {target}.
# - Return whether a selection of the positive {numbers} adds up to exactly {target}.
# ? Can some of {numbers}, none of them twice, be chosen to make {target}?
# ? Say whether {target} is reached by adding a few of {numbers}; none at all make 0.
def subset_sum(numbers: list[int], target: int) -> bool:
    sums = {0}
    for number in numbers:
        sums |= {number + other for other in sums}
    return target in sums


def subset_sum(numbers: list[int], target: int) -> bool:
    if target == 0:
        return True
    if not numbers:
        return False
    first, rest = numbers[0], numbers[1:]
    return subset_sum(rest, target - first) or subset_sum(rest, target)


assert subset_sum([3, 34, 4, 12, 5, 2], 9)
assert subset_sum([5], 5)
assert subset_sum([1, 2], 0)
assert not subset_sum([3, 34, 4, 12, 5, 2], 30)
assert not subset_sum([], 1)


# == max_subarray_sum, max_subarray, kadane
# numbers: items, values, nums
# best: largest, result
# current: ending_here, running
# - Return the largest sum of a non-empty run of neighbouring {numbers}.
# - Find the maximum sum of a contiguous, non-empty part of {numbers}.
# - Compute the maximum subarray sum with Kadane's algorithm.
# - Return the greatest sum of consecutive numbers; at least one has to be taken.
# - Find the contiguous sublist of {numbers} with the largest sum, and return that sum.
# ? What is the highest total that one or more adjacent {numbers} have?
# ? Choose a stretch of the list, not an empty one, and give its greatest possible sum.
def max_subarray_sum(numbers: list[int]) -> int:
    best = current = numbers[0]
    for number in numbers[1:]:
        current = max(number, current + number)
        best = max(best, current)
    return best


def max_subarray_sum(numbers: list[int]) -> int:
    best = numbers[0]
    for i in range(len(numbers)):
        current = 0
        for j in range(i, len(numbers)):
            current += numbers[j]
            if current > best:
                best = current
    return best


assert max_subarray_sum([-2, 1, -3, 4, -1, 2, 1, -5, 4]) == 6
assert max_subarray_sum([1, 2, 3]) == 6
assert max_subarray_sum([-3, -1, -2]) == -1
assert max_subarray_sum([5]) == 5


# == house_robber, max_non_adjacent_sum, rob_houses
# numbers: amounts, values, nums
# taken: robbed, with_last
# skipped: spared, without_last
# - Return the largest sum of {numbers} of which no two are neighbours.
# - Find the maximum sum of non-adjacent {numbers}, which are not negative.
# - Solve the house robber problem: the best loot without two adjacent houses.
# - Compute the greatest total of {numbers} if no two adjacent ones may be taken.
# - Return the most that can be picked from {numbers} without taking neighbours.
# ? How much can a thief take who never robs two houses side by side?
# ? Choose {numbers} that do not touch each other; give their highest possible sum.
def house_robber(numbers: list[int]) -> int:
    taken, skipped = 0, 0
    for number in numbers:
        taken, skipped = skipped + number, max(taken, skipped)
    return max(taken, skipped)


def house_robber(numbers: list[int]) -> int:
    if not numbers:
        return 0
    return max(house_robber(numbers[1:]), numbers[0] + house_robber(numbers[2:]))


assert house_robber([1, 2, 3, 1]) == 4
assert house_robber([2, 7, 9, 3, 1]) == 12
assert house_robber([5]) == 5
assert house_robber([]) == 0


# == word_break, can_segment, can_split_into_words
# text: s, string, sentence
# words: vocabulary, known
# - Return True if {text} can be cut into strings that are all in {words}.
# - Check whether {text} is made of {words} joined without spaces; words may be reused.
# - Test if {text} can be split completely into {words}, each used any number of times.
# - Determine whether {text} is a concatenation of {words}, repeats allowed.
# - Return whether {text} can be segmented into a sequence of {words}.
# ? Can {text} be built by writing some of {words}, also repeatedly, one after the other?
# ? Say whether spaces can be put into {text} so that each piece is one of {words}.
def word_break(text: str, words: list[str]) -> bool:
    reachable = [True] + [False] * len(text)
    for i in range(1, len(text) + 1):
        for j in range(i):
            if reachable[j] and text[j:i] in words:
                reachable[i] = True
                break
    return reachable[-1]


def word_break(text: str, words: list[str]) -> bool:
    if text == "":
        return True
    for word in words:
        if word and text.startswith(word) and word_break(text[len(word) :], words):
            return True
    return False


assert word_break("applepie", ["apple", "pie"])
assert word_break("aaa", ["a", "aa"])
assert word_break("", ["a"])
assert not word_break("catsandog", ["cats", "dog", "sand", "and", "cat"])


# == letter_combinations, phone_letters, keypad_combinations
# digits: number, pressed
# letters: keys, keypad
# result: found, texts
# - Return all texts that {digits} can mean on a phone keypad, in alphabetical order.
# - List the letter combinations of a phone number; digits are 2 to 9, none gives [].
# - Return the sorted letter combinations for {digits} on a telephone keypad, [] for "".
# - Generate every string that the keys {digits} (2 to 9) can stand for, sorted.
# - Find all sorted letter combinations that a string of keypad digits may represent.
# ? Which words in sorted order can be typed with the phone keys {digits}? None give [].
# ? Replace each digit by one of its letters on a phone in every way; sort the results.
def letter_combinations(digits: str) -> list[str]:
    letters = {
        "2": "abc",
        "3": "def",
        "4": "ghi",
        "5": "jkl",
        "6": "mno",
        "7": "pqrs",
        "8": "tuv",
        "9": "wxyz",
    }
    if not digits:
        return []
    result = [""]
    for digit in digits:
        result = [text + letter for text in result for letter in letters[digit]]
    return result


assert letter_combinations("2") == ["a", "b", "c"]
assert letter_combinations("23") == ["ad", "ae", "af", "bd", "be", "bf", "cd", "ce", "cf"]
assert letter_combinations("") == []


# == catalan, catalan_number, nth_catalan
# n: index, k
# numbers: table, known
# - Return the {n}-th Catalan number, where C(0) = 1.
# - Compute the Catalan number with index {n}, counting from 0: 1, 1, 2, 5, 14, ...
# - Calculate Catalan number {n}; the ones at 0 and 1 are both 1.
# - Return how many binary trees with {n} nodes there are, which is a Catalan number.
# - Find the number at index {n} of the Catalan numbers 1, 1, 2, 5, 14, 42, ...
# ? In how many ways can {n} pairs of brackets be balanced? One way for zero pairs.
# ? Give element {n}, from zero, of the series that Catalan is known for.
def catalan(n: int) -> int:
    if n == 0:
        return 1
    return sum(catalan(i) * catalan(n - 1 - i) for i in range(n))


def catalan(n: int) -> int:
    numbers = [1] + [0] * n
    for size in range(1, n + 1):
        for i in range(size):
            numbers[size] += numbers[i] * numbers[size - 1 - i]
    return numbers[n]


assert catalan(0) == 1
assert catalan(1) == 1
assert catalan(4) == 14
assert catalan(8) == 1430
