"""Functions, generators and decorators."""

import functools
import itertools


# == compose, compose_functions
# f: outer, first
# g: inner, second
# - Return a function that applies {g} and then {f}.
# - Compose two functions: the result calls {f} on what {g} returns.
# - Make one function of {f} after {g}.
# ? Give the function x -> {f}({g}(x)).
def compose(f, g):
    return lambda x: f(g(x))


def compose(f, g):
    def composed(x):
        return f(g(x))

    return composed


assert compose(str, abs)(-5) == "5"
assert compose(lambda x: x + 1, lambda x: x * 2)(3) == 7


# == memoize, cached
# function: func, fn
# known: cache, results
# - Decorator that remembers results.
# - Return a function that calls {function} once for each arguments.
# - Cache the results of {function} by its arguments.
# ? Remember what {function} returned for arguments that come again.
def memoize(function):
    known = {}

    @functools.wraps(function)
    def wrapper(*args):
        if args not in known:
            known[args] = function(*args)
        return known[args]

    return wrapper


calls = []
square = memoize(lambda n: calls.append(n) or n * n)
assert square(3) == 9
assert square(3) == 9
assert calls == [3]


# == count_calls, counted
# function: func, fn
# - Decorator that counts how often a function is called.
# - Count the calls of {function} in its attribute calls.
# - Wrap {function} so that wrapper.calls tells how often it ran.
# ? Keep the number of calls of {function} in an attribute calls.
def count_calls(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return function(*args, **kwargs)

    wrapper.calls = 0
    return wrapper


hello = count_calls(lambda: "hi")
hello()
assert hello() == "hi"
assert hello.calls == 2


# == repeat, repeat_calls
# times: count, n
# function: func, fn
# - Decorator that calls a function several times.
# - Return a decorator; the function runs {times} times and the last result counts.
# - Run the decorated function {times} times.
# ? Decorator with a number: call the function that often, return the last result.
def repeat(times: int):
    def decorator(function):
        def wrapper(*args, **kwargs):
            result = None
            for _ in range(times):
                result = function(*args, **kwargs)
            return result

        return wrapper

    return decorator


seen = []
again = repeat(3)(lambda: seen.append(1) or len(seen))
assert again() == 3
assert len(seen) == 3


# == retry, try_again
# attempts: tries, times
# function: func, fn
# attempt: number, i
# - Call a function again when it fails.
# - Call {function} up to {attempts} times; the last error is raised.
# - Retry {function} after an exception, {attempts} times at most.
# ? Call {function} until it works, at most {attempts} times; then raise its error.
def retry(function, attempts: int):
    for attempt in range(attempts):
        try:
            return function()
        except Exception:
            if attempt == attempts - 1:
                raise


failures = [1, 2]


def sometimes():
    if failures:
        raise ValueError(failures.pop())
    return "done"


assert retry(sometimes, 3) == "done"
assert retry(lambda: 5, 1) == 5


# == countdown, count_down
# start: n, number
# - Yield the numbers from {start} down to 1.
# - A generator that counts down to one.
# - Generate {start}, then one less, until 1.
# ? Yield numbers backwards from {start}, ending with 1.
def countdown(start: int):
    while start > 0:
        yield start
        start -= 1


def countdown(start: int):
    for number in range(start, 0, -1):
        yield number


assert list(countdown(3)) == [3, 2, 1]
assert list(countdown(0)) == []


# == fibonacci_generator, generate_fibonacci
# a: previous, first
# b: current, second
# - Yield the Fibonacci numbers without end.
# - Generate Fibonacci numbers, beginning with 0 and 1.
# - An endless generator of Fibonacci numbers from 0.
# ? Yield 0, 1, 1, 2, 3 and so on, each the sum of two before.
def fibonacci_generator():
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a + b


assert list(itertools.islice(fibonacci_generator(), 7)) == [0, 1, 1, 2, 3, 5, 8]


# == even_numbers, generate_even_numbers
# limit: n, stop
# - Yield the even numbers below {limit}.
# - Generate 0, 2, 4 and so on, below {limit}.
# - A generator of even numbers from 0 that ends before {limit}.
# ? Yield every even number that is smaller than {limit}.
def even_numbers(limit: int):
    for number in range(0, limit, 2):
        yield number


def even_numbers(limit: int):
    number = 0
    while number < limit:
        yield number
        number += 2


assert list(even_numbers(7)) == [0, 2, 4, 6]
assert list(even_numbers(0)) == []


# == take_first, first_n
# iterable: values, items
# count: n, limit
# - Return the first {count} items of an iterable as a list.
# - Take {count} items from {iterable}.
# - List the first {count} elements, or fewer if there are not so many.
# ? Give a list of at most {count} items from the front of {iterable}.
def take_first(iterable, count: int) -> list:
    return list(itertools.islice(iterable, count))


def take_first(iterable, count: int) -> list:
    result = []
    for item in iterable:
        if len(result) == count:
            break
        result.append(item)
    return result


assert take_first([1, 2, 3], 2) == [1, 2]
assert take_first("ab", 5) == ["a", "b"]
assert take_first([], 1) == []


# == batched, in_batches
# items: values, elements
# size: count, n
# batch: group, part
# - Yield lists of {size} items.
# - Generate consecutive lists of at most {size} items.
# - A generator that cuts {items} into batches of {size}.
# ? Yield {items} in lists of {size}; the last one may be shorter.
def batched(items, size: int):
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


assert list(batched([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
assert list(batched([], 3)) == []


# == apply_all, apply_functions
# functions: steps, stages
# value: x, data
# function: step, stage
# - Apply functions one after the other.
# - Pass {value} through all {functions} in order.
# - Return what is left after every function in {functions} was applied to {value}.
# ? Send {value} through {functions}, first to last.
def apply_all(functions: list, value):
    for function in functions:
        value = function(value)
    return value


assert apply_all([abs, str], -3) == "3"
assert apply_all([], 4) == 4


# == make_adder, adder
# n: amount, number
# - Return a function that adds {n}.
# - Make a function of one argument that adds {n} to it.
# - Create an adder of {n}.
# ? Give a function which adds {n} to what it gets.
def make_adder(n: int):
    return lambda x: x + n


def make_adder(n: int):
    def add(x):
        return x + n

    return add


assert make_adder(3)(4) == 7
assert make_adder(0)(1) == 1


# == make_counter, new_counter
# - Return a function that counts its calls.
# - Make a function that returns 1, 2, 3 and so on.
# - Create a counter: each call returns one more than the last, from 1.
# ? Give a function whose calls return 1, then 2, then 3.
def make_counter():
    count = 0

    def counter():
        nonlocal count
        count += 1
        return count

    return counter


tick = make_counter()
assert tick() == 1
assert tick() == 2
assert make_counter()() == 1


# == reduce_list, fold
# function: func, combine
# items: values, elements
# start: initial, begin
# - Combine all items into one value.
# - Fold {items} from the left with {function}, beginning with {start}.
# - Reduce {items} with {function} from the value {start}.
# ? Begin with {start} and combine it with each of {items} by {function}.
def reduce_list(function, items: list, start):
    result = start
    for item in items:
        result = function(result, item)
    return result


def reduce_list(function, items: list, start):
    return functools.reduce(function, items, start)


assert reduce_list(lambda a, b: a + b, [1, 2, 3], 0) == 6
assert reduce_list(lambda a, b: a * b, [], 7) == 7


# == calculate, calculator
# a: x, left
# b: y, right
# operator: op, symbol
# - Apply an operator to two numbers.
# - Compute {a} {operator} {b} for +, -, * and /; other operators are a ValueError.
# - A calculator for the operators +, -, * and /.
# ? Work out {a} {operator} {b} with one of + - * /; anything else is a ValueError.
def calculate(a: float, operator: str, b: float) -> float:
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b
    if operator == "*":
        return a * b
    if operator == "/":
        return a / b
    raise ValueError(f"unknown operator {operator!r}")


assert calculate(2, "+", 3) == 5
assert calculate(2, "-", 3) == -1
assert calculate(2, "*", 3) == 6
assert calculate(6, "/", 3) == 2


# == greet, hello
# name: person, who
# - Greet someone by name.
# - Return "Hello, " followed by {name} and an exclamation mark.
# - Say hello to {name}: "Hello, Ada!".
# ? Return a greeting such as "Hello, Ada!" for {name}.
def greet(name: str) -> str:
    return f"Hello, {name}!"


assert greet("Ada") == "Hello, Ada!"
assert greet("Bob") == "Hello, Bob!"


# == grade_letter, letter_grade
# score: points, mark
# - Turn a score into a letter grade.
# - Return A from 90, B from 80, C from 70, D from 60, else F.
# - Grade {score}: 90 is an A, 80 a B, 70 a C, 60 a D, less an F.
# ? Which letter does {score} get: A (90), B (80), C (70), D (60) or F?
def grade_letter(score: int) -> str:
    if score >= 90:
        return "A"
    if score >= 80:
        return "B"
    if score >= 70:
        return "C"
    if score >= 60:
        return "D"
    return "F"


def grade_letter(score: int) -> str:
    for limit, letter in ((90, "A"), (80, "B"), (70, "C"), (60, "D")):
        if score >= limit:
            return letter
    return "F"


assert grade_letter(95) == "A"
assert grade_letter(80) == "B"
assert grade_letter(59) == "F"


# ==! average_of_three
# a: x, first
# b: y, second
# c: z, third
# ? Return the mean of the three numbers {a}, {b} and {c}.
# ? Give the average of {a}, {b} and {c}.
def average_of_three(a: float, b: float, c: float) -> float:
    return (a + b + c) / 3


assert average_of_three(1, 2, 3) == 2
assert average_of_three(0, 0, 0) == 0
