"""Numbers."""

import math


# == fibonacci, fib, nth_fibonacci
# n: index, k
# a: previous, first
# b: current, second
# - Return the {n}-th Fibonacci number.
# - Compute the Fibonacci number at index {n}.
# - Return the Fibonacci number with index {n}, where F(0) = 0 and F(1) = 1.
# - Calculate the {n}th number of the Fibonacci sequence.
# - Find the {n}-th element of the Fibonacci sequence, starting from 0.
# ? Give the Fibonacci number number {n}, counting from zero.
# ? Return number {n} of the Fibonacci series.
def fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def fibonacci(n: int) -> int:
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


assert fibonacci(0) == 0
assert fibonacci(1) == 1
assert fibonacci(10) == 55
assert fibonacci(15) == 610


# == is_prime, is_prime_number, check_prime
# n: number, num, value
# i: divisor, factor, d
# - Return True if {n} is a prime number.
# - Check whether {n} is prime.
# - Test if {n} is a prime number.
# - Return whether {n} has no divisors other than 1 and itself.
# - Determine if the given number is prime.
# ? Say whether {n} is a prime.
# ? Return True when {n} can be divided only by 1 and itself.
def is_prime(n: int) -> bool:
    if n < 2:
        return False
    for i in range(2, int(n**0.5) + 1):
        if n % i == 0:
            return False
    return True


def is_prime(n: int) -> bool:
    if n < 2:
        return False
    i = 2
    while i * i <= n:
        if n % i == 0:
            return False
        i += 1
    return True


assert is_prime(2)
assert is_prime(97)
assert not is_prime(1)
assert not is_prime(91)
assert [n for n in range(20) if is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19]


# == gcd, greatest_common_divisor
# a: x, first, m
# b: y, second, n
# - Return the greatest common divisor of {a} and {b}.
# - Compute the greatest common divisor with Euclid's algorithm.
# - Find the largest number that divides both {a} and {b}.
# - Return the GCD of {a} and {b}.
# - Compute the GCD of two non-negative integers.
# ? Give the biggest integer that divides {a} and {b} alike.
# ? What is the highest number by which both {a} and {b} can be divided?
def gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def gcd(a: int, b: int) -> int:
    if b == 0:
        return a
    return gcd(b, a % b)


assert gcd(12, 18) == 6
assert gcd(7, 5) == 1
assert gcd(0, 9) == 9


# == factorial, fact, compute_factorial
# n: number, num, k
# result: product, total, answer
# i: factor, j, value
# - Return the factorial of {n}.
# - Compute {n}!, the product of all integers from 1 to {n}.
# - Calculate the factorial of a non-negative integer.
# - Return the product of the numbers 1 to {n}, which is 1 for zero.
# - Find the factorial of {n}.
# - Return {n} factorial.
# ? Multiply all whole numbers from 1 up to and including {n}.
# ? Give {n}! for an integer that is not negative.
def factorial(n: int) -> int:
    result = 1
    for i in range(2, n + 1):
        result *= i
    return result


def factorial(n: int) -> int:
    if n <= 1:
        return 1
    return n * factorial(n - 1)


assert factorial(0) == 1
assert factorial(1) == 1
assert factorial(5) == 120
assert factorial(10) == 3628800


# == lcm, least_common_multiple, lowest_common_multiple
# a: x, first, m
# b: y, second, n
# - Return the least common multiple of {a} and {b}.
# - Compute the LCM of {a} and {b}.
# - Find the smallest positive integer that is divisible by both {a} and {b}.
# - Return the lowest common multiple of two positive integers.
# - Calculate the smallest number that both {a} and {b} divide.
# ? Give the smallest shared multiple of {a} and {b}.
# ? What is the least positive number that is a multiple of {a} and of {b}?
def lcm(a: int, b: int) -> int:
    return a * b // math.gcd(a, b)


def lcm(a: int, b: int) -> int:
    larger, smaller = a, b
    while smaller:
        larger, smaller = smaller, larger % smaller
    return a // larger * b


assert lcm(4, 6) == 12
assert lcm(3, 5) == 15
assert lcm(7, 7) == 7
assert lcm(1, 9) == 9


# == sum_of_digits, digit_sum, sum_digits
# n: number, num, value
# total: result, digits_total, answer
# digit: d, ch
# - Return the sum of the digits of {n}.
# - Add up all the digits of {n}.
# - Compute the sum of the decimal digits of {n}.
# - Calculate the total of all digits in the number {n}.
# - Return the digits of {n} added together.
# ? Give the result of adding every digit of {n}.
# ? Find what the decimal digits of {n} add up to.
def sum_of_digits(n: int) -> int:
    n = abs(n)
    total = 0
    while n > 0:
        total += n % 10
        n //= 10
    return total


def sum_of_digits(n: int) -> int:
    return sum(int(digit) for digit in str(abs(n)))


def sum_of_digits(n: int) -> int:
    total = 0
    for digit in str(abs(n)):
        total += int(digit)
    return total


assert sum_of_digits(0) == 0
assert sum_of_digits(7) == 7
assert sum_of_digits(1234) == 10
assert sum_of_digits(9001) == 10


# == product_of_digits, digit_product, multiply_digits
# n: number, num, value
# product: result, total
# digit: d, ch
# - Return the product of the digits of {n}.
# - Multiply all the digits of {n} together.
# - Compute the product of the decimal digits of {n}.
# - Return all digits of {n} multiplied with each other.
# - Calculate what the digits of {n} give when they are multiplied.
# ? Give the result of multiplying every digit of {n}.
# ? Find the number that the digits of {n} multiply to.
def product_of_digits(n: int) -> int:
    product = 1
    for digit in str(abs(n)):
        product *= int(digit)
    return product


def product_of_digits(n: int) -> int:
    return math.prod(int(digit) for digit in str(abs(n)))


assert product_of_digits(5) == 5
assert product_of_digits(234) == 24
assert product_of_digits(105) == 0
assert product_of_digits(999) == 729


# == count_digits, number_of_digits, num_digits
# n: number, num, value
# count: digits, length, total
# - Return the number of digits of {n}.
# - Count the decimal digits of {n}.
# - Return how many digits the integer {n} has, not counting a sign.
# - Count how many digits {n} is written with.
# - Compute how many decimal digits {n} has.
# ? How many digits long is {n}?
# ? Give the length of {n} in decimal digits.
def count_digits(n: int) -> int:
    return len(str(abs(n)))


def count_digits(n: int) -> int:
    n = abs(n)
    count = 1
    while n >= 10:
        n //= 10
        count += 1
    return count


assert count_digits(0) == 1
assert count_digits(9) == 1
assert count_digits(10) == 2
assert count_digits(12345) == 5


# == largest_digit, max_digit, biggest_digit
# n: number, num, value
# largest: biggest, best, highest
# - Return the largest digit of {n}.
# - Find the biggest digit in the number {n}.
# - Return the greatest decimal digit of {n} as an integer.
# - Find the highest digit that occurs in {n}.
# - Compute the maximum of the digits of {n}.
# ? Which digit of {n} is the greatest?
# ? Give the top digit among those of {n}.
def largest_digit(n: int) -> int:
    return max(int(digit) for digit in str(abs(n)))


def largest_digit(n: int) -> int:
    n = abs(n)
    largest = 0
    while n > 0:
        largest = max(largest, n % 10)
        n //= 10
    return largest


assert largest_digit(0) == 0
assert largest_digit(4) == 4
assert largest_digit(2718) == 8
assert largest_digit(9123) == 9


# == reverse_number, reverse_integer, reverse_digits
# n: number, num, value
# result: reversed_number, answer, backwards
# - Return {n} with its digits in reverse order.
# - Reverse the digits of {n}, keeping its sign.
# - Return the integer whose digits are those of {n} backwards.
# - Reverse the decimal digits of the integer {n}.
# - Turn the digits of {n} around and return the new integer.
# ? Give the number that {n} becomes when it is read from right to left.
# ? Write the digits of {n} backwards and return the integer.
def reverse_number(n: int) -> int:
    sign = -1 if n < 0 else 1
    n = abs(n)
    result = 0
    while n > 0:
        result = result * 10 + n % 10
        n //= 10
    return sign * result


def reverse_number(n: int) -> int:
    result = int(str(abs(n))[::-1])
    return -result if n < 0 else result


assert reverse_number(0) == 0
assert reverse_number(123) == 321
assert reverse_number(120) == 21
assert reverse_number(-45) == -54


# == is_palindrome_number, is_palindromic_number, number_is_palindrome
# n: number, num, value
# text: digits, s
# original: start, saved
# backwards: reversed_number, mirrored
# - Return True if the digits of {n} read the same in both directions.
# - Check whether the number {n} is a palindrome.
# - Return whether {n} is equal to itself with its digits reversed.
# - Test if {n} is a palindromic number. Negative numbers are not.
# - Determine whether {n} reads the same forwards and backwards.
# ? Say whether the integer {n} stays the same when it is read backwards.
# ? Is {n} a number that equals its own mirror image?
def is_palindrome_number(n: int) -> bool:
    text = str(n)
    return text == text[::-1]


def is_palindrome_number(n: int) -> bool:
    if n < 0:
        return False
    original, backwards = n, 0
    while n > 0:
        backwards = backwards * 10 + n % 10
        n //= 10
    return original == backwards


assert is_palindrome_number(0)
assert is_palindrome_number(121)
assert is_palindrome_number(4554)
assert not is_palindrome_number(123)
assert not is_palindrome_number(10)


# == is_even, is_even_number, check_even
# n: number, num, value
# - Return True if {n} is even.
# - Check whether {n} is an even number.
# - Return whether {n} is divisible by two.
# - Test if {n} is even.
# - Determine if the given integer is even.
# ? Say whether {n} can be split into two equal integers.
# ? Is {n} a multiple of 2?
def is_even(n: int) -> bool:
    return n % 2 == 0


def is_even(n: int) -> bool:
    return n & 1 == 0


assert is_even(0)
assert is_even(4)
assert is_even(-2)
assert not is_even(7)


# == is_odd, is_odd_number, check_odd
# n: number, num, value
# - Return True if {n} is odd.
# - Check whether {n} is an odd number.
# - Return whether {n} is not divisible by two.
# - Test if {n} is odd.
# - Determine if the given integer is odd.
# ? Say whether dividing {n} by two leaves a remainder.
# ? Is {n} an integer that is not even?
def is_odd(n: int) -> bool:
    return n % 2 == 1


def is_odd(n: int) -> bool:
    return n % 2 != 0


assert is_odd(1)
assert is_odd(-3)
assert not is_odd(0)
assert not is_odd(8)


# == is_divisible, is_divisible_by, divides_evenly
# n: number, num, value
# divisor: d, k, factor
# - Return True if {n} is divisible by {divisor}.
# - Check whether {n} can be divided by {divisor} without a remainder.
# - Return whether {divisor} divides {n} evenly.
# - Test if {n} is a multiple of {divisor}.
# - Determine if dividing {n} by {divisor} leaves no remainder.
# ? Say whether {divisor} goes into {n} exactly.
# ? Is the remainder of {n} divided by {divisor} zero?
def is_divisible(n: int, divisor: int) -> bool:
    return n % divisor == 0


assert is_divisible(10, 5)
assert is_divisible(0, 3)
assert is_divisible(-9, 3)
assert not is_divisible(10, 3)


# == add, add_numbers, add_two_numbers
# a: x, first, num1
# b: y, second, num2
# - Return the sum of {a} and {b}.
# - Add two numbers.
# - Add {a} and {b} and return the result.
# - Return {a} plus {b}.
# - Compute the sum of two numbers.
# ? Give what {a} and {b} make together.
# ? Calculate {a} + {b}.
def add(a: float, b: float) -> float:
    return a + b


assert add(2, 3) == 5
assert add(-1, 1) == 0
assert add(0, 0) == 0
assert add(1.5, 2) == 3.5


# == subtract, subtract_numbers, difference_of
# a: x, first, num1
# b: y, second, num2
# - Return {a} minus {b}.
# - Subtract {b} from {a}.
# - Return the result of subtracting {b} from {a}.
# - Take {b} away from {a} and return what is left.
# - Compute {a} - {b}.
# ? Give what remains of {a} after taking away {b}.
# ? Calculate {a} less {b}.
def subtract(a: float, b: float) -> float:
    return a - b


assert subtract(5, 3) == 2
assert subtract(3, 5) == -2
assert subtract(0, 0) == 0


# == multiply, multiply_numbers, product_of_two
# a: x, first, num1
# b: y, second, num2
# - Return the product of {a} and {b}.
# - Multiply two numbers.
# - Multiply {a} by {b} and return the result.
# - Return {a} times {b}.
# - Compute the product of two numbers.
# ? What do {a} and {b} give when they are multiplied?
# ? Calculate {a} * {b}.
def multiply(a: float, b: float) -> float:
    return a * b


assert multiply(2, 3) == 6
assert multiply(-4, 5) == -20
assert multiply(7, 0) == 0


# == safe_divide, divide_safely, divide_or_none
# a: x, numerator, dividend
# b: y, denominator, divisor
# - Divide {a} by {b}, and return None if {b} is zero.
# - Return {a} divided by {b}, or None when dividing by zero.
# - Return the quotient of {a} and {b}, or None if {b} is 0.
# - Compute {a} / {b} without failing: the result for a zero {b} is None.
# - Divide two numbers and return None instead of dividing by zero.
# ? Give {a} / {b}, but None where that would be a division by zero.
# ? Return the quotient of the arguments, or None when the second one is zero.
def safe_divide(a: float, b: float) -> float | None:
    if b == 0:
        return None
    return a / b


def safe_divide(a: float, b: float) -> float | None:
    try:
        return a / b
    except ZeroDivisionError:
        return None


assert safe_divide(6, 3) == 2.0
assert safe_divide(1, 4) == 0.25
assert safe_divide(5, 0) is None
assert safe_divide(0, 5) == 0.0


# == square, square_number, squared
# n: x, number, num
# - Return the square of {n}.
# - Multiply {n} by itself.
# - Compute {n} to the power of two.
# - Return {n} squared.
# - Calculate the square of a number.
# ? Give {n} times {n}.
# ? Raise {n} to the second power.
def square(n: float) -> float:
    return n * n


def square(n: float) -> float:
    return n**2


assert square(0) == 0
assert square(4) == 16
assert square(-3) == 9


# == cube, cube_number, cubed
# n: x, number, num
# - Return the cube of {n}.
# - Compute {n} to the power of three.
# - Return {n} cubed.
# - Calculate the cube of a number.
# - Return the product of three copies of {n}.
# ? Give {n} * {n} * {n}.
# ? Raise {n} to the third power.
def cube(n: float) -> float:
    return n**3


def cube(n: float) -> float:
    return n * n * n


assert cube(0) == 0
assert cube(3) == 27
assert cube(-2) == -8


# == max_of_three, largest_of_three, maximum_of_three
# a: x, first, num1
# b: y, second, num2
# c: z, third, num3
# largest: biggest, result
# - Return the largest of three numbers.
# - Return the maximum of {a}, {b} and {c}.
# - Find the greatest of the three numbers {a}, {b} and {c}.
# - Return whichever of {a}, {b} and {c} is the biggest.
# - Find the maximum of three values.
# ? Which of {a}, {b} and {c} is the highest number?
# ? Give the biggest one of three numbers.
def max_of_three(a: float, b: float, c: float) -> float:
    return max(a, b, c)


def max_of_three(a: float, b: float, c: float) -> float:
    if a >= b and a >= c:
        return a
    if b >= c:
        return b
    return c


def max_of_three(a: float, b: float, c: float) -> float:
    largest = a
    if b > largest:
        largest = b
    if c > largest:
        largest = c
    return largest


assert max_of_three(1, 2, 3) == 3
assert max_of_three(9, 2, 3) == 9
assert max_of_three(1, 5, 3) == 5
assert max_of_three(4, 4, 4) == 4
assert max_of_three(-1, -2, -3) == -1


# == is_perfect, is_perfect_number, check_perfect_number
# n: number, num, value
# total: divisor_sum, result
# i: divisor, d
# - Return True if {n} is a perfect number.
# - Check whether {n} equals the sum of its proper divisors.
# - Test if {n} is perfect, that is, equal to the sum of its smaller divisors.
# - Determine whether {n} is a perfect number.
# - Return whether the divisors of {n} below {n} add up to {n}.
# ? Is {n} the sum of all positive divisors that are less than {n}?
# ? Say whether {n} is perfect, as 6 and 28 are.
def is_perfect(n: int) -> bool:
    if n < 2:
        return False
    return sum(i for i in range(1, n) if n % i == 0) == n


def is_perfect(n: int) -> bool:
    if n < 2:
        return False
    total = 1
    for i in range(2, n // 2 + 1):
        if n % i == 0:
            total += i
    return total == n


assert is_perfect(6)
assert is_perfect(28)
assert not is_perfect(1)
assert not is_perfect(12)


# == divisors, get_divisors, find_divisors, all_divisors
# n: number, num, value
# result: found, factors
# i: d, candidate
# - Return all positive divisors of {n} in ascending order.
# - Return a sorted list of the numbers that divide {n}.
# - List all divisors of {n}, including 1 and {n}, from smallest to largest.
# - Find every positive integer that divides {n} evenly, in increasing order.
# - Return the list of divisors of {n} in ascending order.
# ? Give the numbers by which {n} can be divided, the smallest first.
# ? Collect each integer from 1 to {n} that divides {n} without a remainder.
def divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


def divisors(n: int) -> list[int]:
    result = []
    for i in range(1, n + 1):
        if n % i == 0:
            result.append(i)
    return result


def divisors(n: int) -> list[int]:
    small, large = [], []
    i = 1
    while i * i <= n:
        if n % i == 0:
            small.append(i)
            if i != n // i:
                large.append(n // i)
        i += 1
    return small + large[::-1]


assert divisors(1) == [1]
assert divisors(7) == [1, 7]
assert divisors(12) == [1, 2, 3, 4, 6, 12]
assert divisors(16) == [1, 2, 4, 8, 16]


# ==! count_divisors, number_of_divisors, divisor_count
# n: number, num, value
# count: total, result
# i: d, candidate
# - Return the number of positive divisors of {n}.
# - Count how many positive integers divide {n}.
# - Count the divisors of {n}, including 1 and {n}.
# - Return how many divisors {n} has.
# - Compute the number of positive integers that divide {n} evenly.
# ? How many positive integers is {n} divisible by?
# ? Give the count of all factors of {n}, with 1 and {n} among them.
def count_divisors(n: int) -> int:
    count = 0
    for i in range(1, n + 1):
        if n % i == 0:
            count += 1
    return count


def count_divisors(n: int) -> int:
    return sum(1 for i in range(1, n + 1) if n % i == 0)


assert count_divisors(1) == 1
assert count_divisors(7) == 2
assert count_divisors(12) == 6
assert count_divisors(36) == 9


# == prime_factors, prime_factorization, factorize
# n: number, num, value
# factors: result, found, primes
# divisor: d, candidate, p
# - Return the prime factors of {n} in ascending order, with repetition.
# - Factorize {n} into a list of primes, smallest first, repeated as often as they occur.
# - Return the list of primes whose product is {n}, in increasing order.
# - Find all prime factors of {n}, each as often as it divides {n}, in ascending order.
# - Compute the prime factorization of {n} as a sorted list with repeated factors.
# ? Split {n} into its prime factors: a sorted list that multiplies to {n}.
# ? Give the primes that multiply to {n}, from small to large, repeats included.
def prime_factors(n: int) -> list[int]:
    factors = []
    divisor = 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    if n > 1:
        factors.append(n)
    return factors


def prime_factors(n: int) -> list[int]:
    factors = []
    divisor = 2
    while n > 1:
        if n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        else:
            divisor += 1
    return factors


assert prime_factors(1) == []
assert prime_factors(2) == [2]
assert prime_factors(12) == [2, 2, 3]
assert prime_factors(97) == [97]
assert prime_factors(360) == [2, 2, 2, 3, 3, 5]


# == largest_prime_factor, biggest_prime_factor, greatest_prime_factor
# n: number, num, value
# divisor: d, candidate, factor
# - Return the largest prime factor of {n}.
# - Find the biggest prime that divides {n}.
# - Return the greatest prime number that divides {n}, which is at least 2.
# - Compute the largest prime factor of an integer greater than 1.
# - Find the highest prime factor of {n}.
# ? Which is the greatest prime among the divisors of {n}?
# ? Give the biggest prime by which {n} can be divided.
def largest_prime_factor(n: int) -> int:
    divisor = 2
    while divisor * divisor <= n:
        if n % divisor == 0:
            n //= divisor
        else:
            divisor += 1
    return n


def largest_prime_factor(n: int) -> int:
    largest = 1
    divisor = 2
    while n > 1:
        while n % divisor == 0:
            largest = divisor
            n //= divisor
        divisor += 1
    return largest


assert largest_prime_factor(2) == 2
assert largest_prime_factor(8) == 2
assert largest_prime_factor(13195) == 29
assert largest_prime_factor(21) == 7


# == primes_up_to, sieve_of_eratosthenes, get_primes, find_primes
# limit: n, maximum, upper
# sieve: is_prime, flags, marked
# i: p, number, candidate
# multiple: j, k, m
# primes: result, found
# - Return all prime numbers up to and including {limit}.
# - Return a list of the primes that are not greater than {limit}.
# - Find all primes from 2 to {limit} inclusive with the sieve of Eratosthenes.
# - Compute the list of prime numbers less than or equal to {limit}.
# - List every prime number up to {limit}, including {limit} if it is prime.
# ? Give the primes in ascending order that are at most {limit}.
# ? Sieve the primes between 2 and {limit}, both ends included.
def primes_up_to(limit: int) -> list[int]:
    if limit < 2:
        return []
    sieve = [True] * (limit + 1)
    sieve[0] = sieve[1] = False
    for i in range(2, int(limit**0.5) + 1):
        if sieve[i]:
            for multiple in range(i * i, limit + 1, i):
                sieve[multiple] = False
    return [i for i in range(limit + 1) if sieve[i]]


def primes_up_to(limit: int) -> list[int]:
    sieve = [True] * (limit + 1)
    primes = []
    for i in range(2, limit + 1):
        if sieve[i]:
            primes.append(i)
            for multiple in range(i * i, limit + 1, i):
                sieve[multiple] = False
    return primes


def primes_up_to(limit: int) -> list[int]:
    primes = []
    for i in range(2, limit + 1):
        if all(i % p != 0 for p in primes):
            primes.append(i)
    return primes


assert primes_up_to(1) == []
assert primes_up_to(2) == [2]
assert primes_up_to(10) == [2, 3, 5, 7]
assert primes_up_to(30) == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
assert primes_up_to(0) == []


# == nth_prime, get_nth_prime, prime_at
# n: k, position, index
# primes: found, known
# candidate: number, current
# count: seen, total
# - Return the {n}-th prime number, where the first one is 2.
# - Find the {n}-th prime, counting from 1.
# - Compute the prime number at position {n}; position 1 holds 2.
# - Return prime number {n} in the list 2, 3, 5, 7, ..., counting from 1.
# - Find the {n}th prime number, so that 1 gives 2 and 2 gives 3.
# ? Give prime number {n}, with 2 as number one.
# ? Which prime stands at place {n} (the first place is 1)?
def nth_prime(n: int) -> int:
    primes = []
    candidate = 2
    while len(primes) < n:
        if all(candidate % p != 0 for p in primes):
            primes.append(candidate)
        candidate += 1
    return primes[-1]


def nth_prime(n: int) -> int:
    count = 0
    candidate = 1
    while count < n:
        candidate += 1
        if all(candidate % d != 0 for d in range(2, int(candidate**0.5) + 1)):
            count += 1
    return candidate


assert nth_prime(1) == 2
assert nth_prime(2) == 3
assert nth_prime(6) == 13
assert nth_prime(25) == 97


# == next_prime, next_prime_after, prime_after
# n: number, num, start
# candidate: current, guess
# - Return the smallest prime number greater than {n}.
# - Find the next prime after {n}.
# - Return the first prime that is strictly larger than {n}.
# - Compute the smallest prime above {n}.
# - Find the nearest prime number that is greater than {n}.
# ? Which prime follows {n}?
# ? Give the first prime that comes after {n}, never {n} itself.
def next_prime(n: int) -> int:
    candidate = max(n + 1, 2)
    while any(candidate % d == 0 for d in range(2, int(candidate**0.5) + 1)):
        candidate += 1
    return candidate


def has_no_divisor(k: int) -> bool:
    return k >= 2 and all(k % d != 0 for d in range(2, int(k**0.5) + 1))


def next_prime(n: int) -> int:
    candidate = n + 1
    while not has_no_divisor(candidate):
        candidate += 1
    return candidate


assert next_prime(0) == 2
assert next_prime(2) == 3
assert next_prime(7) == 11
assert next_prime(90) == 97


# == are_coprime, is_coprime, relatively_prime
# a: x, first, m
# b: y, second, n
# - Return True if {a} and {b} are coprime.
# - Check whether {a} and {b} have no common divisor other than 1.
# - Test if {a} and {b} are relatively prime.
# - Return whether the greatest common divisor of {a} and {b} is 1.
# - Determine whether {a} and {b} share no divisor but 1.
# ? Say whether 1 is the only positive integer that divides both {a} and {b}.
# ? Are {a} and {b} without a common factor above 1?
def are_coprime(a: int, b: int) -> bool:
    return math.gcd(a, b) == 1


def are_coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1


assert are_coprime(8, 9)
assert are_coprime(1, 5)
assert not are_coprime(6, 9)
assert not are_coprime(4, 4)


# == totient, euler_totient, phi
# n: number, num, m
# - Return how many of the numbers from 1 to {n} are coprime to {n}.
# - Compute Euler's totient of {n}.
# - Count the integers between 1 and {n} whose greatest common divisor with {n} is 1.
# - Return Euler's phi function of {n}.
# - Count the numbers from 1 to {n} that share no divisor but 1 with {n}.
# ? Evaluate the totient function of Euler at {n}.
# ? How many positive integers up to {n} are relatively prime to {n}?
def totient(n: int) -> int:
    return sum(1 for k in range(1, n + 1) if math.gcd(k, n) == 1)


def totient(n: int) -> int:
    count = 0
    for k in range(1, n + 1):
        if math.gcd(n, k) == 1:
            count += 1
    return count


assert totient(1) == 1
assert totient(7) == 6
assert totient(10) == 4
assert totient(36) == 12


# == is_armstrong, is_armstrong_number, is_narcissistic
# n: number, num, value
# digits: text, s
# total: result, power_sum
# - Return True if {n} is an Armstrong number.
# - Check whether {n} equals the sum of its digits, each to the power of the digit count.
# - Test if {n} is an Armstrong number, as 153 = 1**3 + 5**3 + 3**3 is.
# - Determine whether {n} is a narcissistic number.
# - Return whether the digits of {n}, raised to their number, add up to {n}.
# ? Say whether {n} is the sum of its digits raised to the number of digits.
# ? Is {n} narcissistic, which is also called an Armstrong number?
def is_armstrong(n: int) -> bool:
    digits = str(n)
    return n == sum(int(digit) ** len(digits) for digit in digits)


def is_armstrong(n: int) -> bool:
    count = len(str(n))
    total = 0
    rest = n
    while rest > 0:
        total += (rest % 10) ** count
        rest //= 10
    return total == n


assert is_armstrong(5)
assert is_armstrong(153)
assert is_armstrong(9474)
assert not is_armstrong(10)
assert not is_armstrong(154)


# == is_happy, is_happy_number, happy_number
# n: number, num, value
# seen: visited, known
# - Return True if {n} is a happy number.
# - Check whether replacing {n} by the sum of its squared digits again and again ends at 1.
# - Test if {n} is happy: repeatedly summing the squares of the digits reaches 1.
# - Determine whether {n} is a happy number.
# - Return whether repeated sums of the squares of the digits of {n} reach 1.
# ? Say whether {n} is happy in the sense of number theory.
# ? Does adding the squares of the digits over and over lead from {n} to 1?
def is_happy(n: int) -> bool:
    seen = set()
    while n != 1 and n not in seen:
        seen.add(n)
        n = sum(int(digit) ** 2 for digit in str(n))
    return n == 1


def is_happy(n: int) -> bool:
    seen = set()
    while n != 1:
        if n in seen:
            return False
        seen.add(n)
        total = 0
        while n > 0:
            n, digit = divmod(n, 10)
            total += digit * digit
        n = total
    return True


assert is_happy(1)
assert is_happy(19)
assert is_happy(7)
assert not is_happy(2)
assert not is_happy(4)


# == collatz_steps, collatz_length, count_collatz_steps
# n: number, start, value
# steps: count, total
# - Return how many Collatz steps it takes to get from {n} to 1.
# - Count the steps of the Collatz process until {n} becomes 1.
# - Count steps until {n} is 1: halve even numbers, map odd ones to 3 times plus 1.
# - Compute the number of steps that the Collatz sequence of {n} needs to reach 1.
# - Return the number of Collatz steps from {n} down to 1, which is 0 for 1.
# ? How often must the Collatz rule be applied to {n} before it reaches 1?
# ? Give the number of moves from {n} to 1 in the 3x + 1 problem.
def collatz_steps(n: int) -> int:
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n //= 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def collatz_steps(n: int) -> int:
    if n == 1:
        return 0
    if n % 2 == 0:
        return 1 + collatz_steps(n // 2)
    return 1 + collatz_steps(3 * n + 1)


assert collatz_steps(1) == 0
assert collatz_steps(2) == 1
assert collatz_steps(6) == 8
assert collatz_steps(27) == 111


# == collatz_sequence, collatz, hailstone_sequence
# n: number, start, value
# sequence: result, numbers, path
# - Return the Collatz sequence from {n} to 1 as a list.
# - List all numbers of the Collatz sequence that starts at {n} and ends at 1.
# - Return the hailstone numbers from {n} down to 1, both included.
# - Build the list of values that the Collatz rule produces from {n} until 1.
# - Generate the Collatz sequence of {n}, beginning with {n} and ending with 1.
# ? Give every value on the Collatz path from {n} to 1, with both ends.
# ? Apply the 3x + 1 rule to {n} until it is 1 and return all values in a list.
def collatz_sequence(n: int) -> list[int]:
    sequence = [n]
    while n != 1:
        if n % 2 == 0:
            n //= 2
        else:
            n = 3 * n + 1
        sequence.append(n)
    return sequence


def collatz_sequence(n: int) -> list[int]:
    sequence = [n]
    while sequence[-1] != 1:
        last = sequence[-1]
        sequence.append(last // 2 if last % 2 == 0 else 3 * last + 1)
    return sequence


assert collatz_sequence(1) == [1]
assert collatz_sequence(4) == [4, 2, 1]
assert collatz_sequence(6) == [6, 3, 10, 5, 16, 8, 4, 2, 1]


# == power, compute_power, raise_to_power
# base: x, number, b
# exponent: n, times, e
# result: product, answer
# - Raise {base} to the power of {exponent}.
# - Multiply {exponent} copies of {base} together and return the product.
# - Compute {base} to the power of a non-negative integer {exponent}.
# - Return {base} to the {exponent}-th power.
# - Calculate {base} raised to {exponent}, which is not negative.
# ? Give the {exponent}-th power of {base}.
# ? Work out {base} ** {exponent} for a whole exponent of at least zero.
def power(base: float, exponent: int) -> float:
    result = 1
    for _ in range(exponent):
        result *= base
    return result


def power(base: float, exponent: int) -> float:
    result = 1
    while exponent > 0:
        if exponent % 2 == 1:
            result *= base
        base *= base
        exponent //= 2
    return result


assert power(2, 10) == 1024
assert power(5, 0) == 1
assert power(-3, 3) == -27
assert power(0, 4) == 0


# == modular_power, mod_pow, power_mod
# base: x, number, b
# exponent: n, times, e
# modulus: m, mod, divisor
# result: product, answer
# - Return {base} to the power of {exponent} modulo {modulus}.
# - Compute the remainder of {base} ** {exponent} divided by {modulus}.
# - Raise {base} to {exponent} modulo {modulus} by repeated squaring.
# - Calculate a power modulo {modulus} without large intermediate numbers.
# - Return ({base} ** {exponent}) % {modulus} efficiently.
# ? What is left when the power {base} ** {exponent} is divided by {modulus}?
# ? Do modular exponentiation of {base}, {exponent} and {modulus}.
def modular_power(base: int, exponent: int, modulus: int) -> int:
    result = 1 % modulus
    base %= modulus
    while exponent > 0:
        if exponent % 2 == 1:
            result = result * base % modulus
        base = base * base % modulus
        exponent //= 2
    return result


def modular_power(base: int, exponent: int, modulus: int) -> int:
    return pow(base, exponent, modulus)


assert modular_power(2, 10, 1000) == 24
assert modular_power(3, 0, 7) == 1
assert modular_power(7, 3, 5) == 3
assert modular_power(4, 13, 497) == 445


# == is_power_of_two, is_power_of_2, check_power_of_two
# n: number, num, value
# - Return True if {n} is a power of two.
# - Check whether {n} is a power of 2.
# - Test if {n} is 1, 2, 4, 8 or another power of two.
# - Determine whether {n} can be written as 2 to a non-negative integer power.
# - Return whether {n} is an integer power of two.
# ? Say whether doubling 1 some number of times gives {n}.
# ? Does {n} belong to the sequence 1, 2, 4, 8, 16, ...?
def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def is_power_of_two(n: int) -> bool:
    if n < 1:
        return False
    while n % 2 == 0:
        n //= 2
    return n == 1


assert is_power_of_two(1)
assert is_power_of_two(64)
assert not is_power_of_two(0)
assert not is_power_of_two(12)
assert not is_power_of_two(-4)


# == integer_square_root, int_sqrt, floor_sqrt
# n: number, num, value
# low: left, lo
# high: right, hi
# mid: middle, guess
# root: result, r
# - Return the integer square root of {n}, rounded down.
# - Find the largest integer whose square is not greater than {n}.
# - Compute the square root of {n} rounded down to an integer.
# - Return the floor of the square root of {n}.
# - Calculate the greatest integer r with r * r <= {n}.
# ? Give the whole part of the square root of {n}.
# ? Which is the biggest integer that has a square of at most {n}?
def integer_square_root(n: int) -> int:
    root = 0
    while (root + 1) * (root + 1) <= n:
        root += 1
    return root


def integer_square_root(n: int) -> int:
    low, high = 0, n
    while low < high:
        mid = (low + high + 1) // 2
        if mid * mid <= n:
            low = mid
        else:
            high = mid - 1
    return low


def integer_square_root(n: int) -> int:
    return math.isqrt(n)


assert integer_square_root(0) == 0
assert integer_square_root(1) == 1
assert integer_square_root(16) == 4
assert integer_square_root(99) == 9


# == is_perfect_square, is_square, is_square_number
# n: number, num, value
# root: r, side
# - Return True if {n} is a perfect square.
# - Check whether {n} is the square of an integer.
# - Test if the square root of {n} is an integer.
# - Determine whether some integer times itself equals {n}.
# - Return whether {n} is a square number.
# ? Say whether {n} is one of 0, 1, 4, 9, 16 and so on.
# ? Is there an integer with the square {n}?
def is_perfect_square(n: int) -> bool:
    if n < 0:
        return False
    root = math.isqrt(n)
    return root * root == n


def is_perfect_square(n: int) -> bool:
    root = 0
    while root * root < n:
        root += 1
    return root * root == n


assert is_perfect_square(0)
assert is_perfect_square(1)
assert is_perfect_square(49)
assert not is_perfect_square(50)
assert not is_perfect_square(-4)


# == clamp, clamp_value, limit_to_range
# value: x, number, n
# low: minimum, lower, lo
# high: maximum, upper, hi
# - Limit {value} to the range from {low} to {high}.
# - Return {value}, but at least {low} and at most {high}.
# - Clamp {value} between {low} and {high}.
# - Return {low} if {value} is below it, {high} if above it, else {value}.
# - Force {value} into the interval from {low} to {high}.
# ? Give the number between {low} and {high} that is nearest to {value}.
# ? Cut {value} off at {low} below and at {high} above.
def clamp(value: float, low: float, high: float) -> float:
    return max(low, min(value, high))


def clamp(value: float, low: float, high: float) -> float:
    if value < low:
        return low
    if value > high:
        return high
    return value


assert clamp(5, 0, 10) == 5
assert clamp(-3, 0, 10) == 0
assert clamp(42, 0, 10) == 10
assert clamp(10, 0, 10) == 10


# == is_between, in_range, is_in_range
# value: x, number, n
# low: minimum, lower, lo
# high: maximum, upper, hi
# - Return True if {value} lies between {low} and {high}, both inclusive.
# - Check whether {value} is at least {low} and at most {high}.
# - Test if {value} is in the range from {low} to {high}, including both ends.
# - Determine whether {low} <= {value} <= {high}.
# - Return whether {value} is neither below {low} nor above {high}.
# ? Say whether {value} is inside the closed interval from {low} to {high}.
# ? Is {value} no smaller than {low} and no larger than {high}?
def is_between(value: float, low: float, high: float) -> bool:
    return low <= value <= high


assert is_between(5, 1, 10)
assert is_between(1, 1, 10)
assert is_between(10, 1, 10)
assert not is_between(11, 1, 10)
assert not is_between(0, 1, 10)


# == sign, sign_of, signum
# n: x, number, value
# - Return 1 if {n} is positive, -1 if it is negative and 0 if it is zero.
# - Return the sign of {n} as -1, 0 or 1.
# - Compute the signum of {n}: -1, 0 or 1.
# - Return -1, 0 or 1 for a negative, zero or positive {n}.
# - Tell the sign of {n}: 1 above zero, -1 below zero, else 0.
# ? Give 0 for zero, 1 for a number above it and -1 for one below.
# ? Map {n} to -1, 0 or 1 according to its sign.
def sign(n: float) -> int:
    if n > 0:
        return 1
    if n < 0:
        return -1
    return 0


def sign(n: float) -> int:
    return (n > 0) - (n < 0)


assert sign(12) == 1
assert sign(-0.5) == -1
assert sign(0) == 0


# == absolute_value, absolute, magnitude
# n: x, number, value
# - Return the absolute value of {n}.
# - Return {n} without its sign.
# - Compute how far {n} is away from zero.
# - Return {n} if it is not negative, and -{n} otherwise.
# - Return the magnitude of a number.
# ? Give the distance between {n} and zero.
# ? Drop the minus sign of {n}, if there is one.
def absolute_value(n: float) -> float:
    if n < 0:
        return -n
    return n


def absolute_value(n: float) -> float:
    return -n if n < 0 else n


assert absolute_value(3) == 3
assert absolute_value(-3) == 3
assert absolute_value(0) == 0
assert absolute_value(-2.5) == 2.5


# == sum_to_n, sum_up_to, sum_of_first_n
# n: number, limit, last
# total: result, s
# - Return the sum of the integers from 1 to {n}.
# - Add up all numbers from 1 to {n} inclusive.
# - Compute 1 + 2 + ... + {n}.
# - Calculate the sum of the first {n} positive integers.
# - Return the sum of all integers from 1 up to and including {n}.
# ? What do the whole numbers from 1 through {n} add up to?
# ? Give the total of the positive integers that are at most {n}.
def sum_to_n(n: int) -> int:
    return sum(range(1, n + 1))


def sum_to_n(n: int) -> int:
    total = 0
    for i in range(1, n + 1):
        total += i
    return total


def sum_to_n(n: int) -> int:
    return n * (n + 1) // 2


assert sum_to_n(0) == 0
assert sum_to_n(1) == 1
assert sum_to_n(10) == 55
assert sum_to_n(100) == 5050


# == sum_of_squares_to, sum_of_first_squares, sum_squares_up_to
# n: number, limit, last
# total: result, s
# - Return the sum of the squares of the integers from 1 to {n}.
# - Compute 1**2 + 2**2 + ... + {n}**2.
# - Add up the squares of all numbers from 1 to {n} inclusive.
# - Calculate the sum of the first {n} square numbers, beginning with 1.
# - Sum the squares of the first {n} positive integers.
# ? What do 1, 4, 9 and so on, up to the square of {n}, add up to?
# ? Give the total of i * i for every integer i from 1 through {n}.
def sum_of_squares_to(n: int) -> int:
    return sum(i * i for i in range(1, n + 1))


def sum_of_squares_to(n: int) -> int:
    total = 0
    for i in range(1, n + 1):
        total += i**2
    return total


def sum_of_squares_to(n: int) -> int:
    return n * (n + 1) * (2 * n + 1) // 6


assert sum_of_squares_to(0) == 0
assert sum_of_squares_to(1) == 1
assert sum_of_squares_to(3) == 14
assert sum_of_squares_to(10) == 385


# == sum_of_multiples, sum_multiples_of_3_or_5, sum_multiples_below
# limit: n, bound, maximum
# total: result, s
# i: number, k
# - Return the sum of all multiples of 3 or 5 below {limit}.
# - Add up the positive numbers less than {limit} that are divisible by 3 or 5.
# - Sum the natural numbers below {limit} that are multiples of 3 or 5.
# - Compute the sum of the numbers under {limit} which 3 or 5 divides.
# - Find the sum of every multiple of 3 or 5 that is smaller than {limit}.
# ? What do the multiples of three or five below {limit} add up to?
# ? Total the integers from 1 to {limit} - 1 that 3 or 5 divides evenly.
def sum_of_multiples(limit: int) -> int:
    return sum(i for i in range(limit) if i % 3 == 0 or i % 5 == 0)


def sum_of_multiples(limit: int) -> int:
    total = 0
    for i in range(1, limit):
        if i % 3 == 0 or i % 5 == 0:
            total += i
    return total


assert sum_of_multiples(10) == 23
assert sum_of_multiples(3) == 0
assert sum_of_multiples(16) == 60
assert sum_of_multiples(1000) == 233168


# == triangular_number, nth_triangular, triangle_number
# n: index, k, rows
# - Return the {n}-th triangular number.
# - Compute triangular number {n}, where the first is 1 and the second is 3.
# - Return how many dots form a triangle with {n} rows of 1, 2, 3, ... dots.
# - Calculate the {n}-th triangular number as {n} * ({n} + 1) / 2.
# - Find the {n}-th number of the series 1, 3, 6, 10, ..., counting from 1.
# ? Give number {n} of the triangular numbers, which start with 1, 3 and 6.
# ? How many balls does a triangle have whose rows hold 1 to {n} balls?
def triangular_number(n: int) -> int:
    return n * (n + 1) // 2


assert triangular_number(1) == 1
assert triangular_number(2) == 3
assert triangular_number(4) == 10
assert triangular_number(7) == 28


# == decimal_to_binary, to_binary, int_to_binary
# n: number, num, decimal
# bits: digits, result, binary
# - Return the binary digits of {n} as a string without a prefix.
# - Convert the non-negative integer {n} to a binary string such as "101".
# - Return {n} written in base 2 as a string of zeros and ones.
# - Convert {n} from decimal to a string of binary digits.
# - Return the binary representation of {n} as a string without "0b".
# ? Write {n} in the binary system and return the text.
# ? Give the string of 0s and 1s that stands for {n} in base two.
def decimal_to_binary(n: int) -> str:
    if n == 0:
        return "0"
    bits = ""
    while n > 0:
        bits = str(n % 2) + bits
        n //= 2
    return bits


def decimal_to_binary(n: int) -> str:
    return bin(n)[2:]


def decimal_to_binary(n: int) -> str:
    if n < 2:
        return str(n)
    return decimal_to_binary(n // 2) + str(n % 2)


assert decimal_to_binary(0) == "0"
assert decimal_to_binary(1) == "1"
assert decimal_to_binary(5) == "101"
assert decimal_to_binary(16) == "10000"


# == binary_to_decimal, from_binary, binary_to_int
# text: binary, bits, digits
# result: value, number, total
# bit: digit, ch, b
# - Convert a string of binary digits to an integer.
# - Return the number that the binary string {text} stands for.
# - Convert {text}, a string of zeros and ones, from base 2 to an integer.
# - Return the decimal value of the binary digits in {text}.
# - Interpret {text} as a binary number and return its value.
# ? Read {text} as a number in base two.
# ? Give the integer which is written in binary as {text}.
def binary_to_decimal(text: str) -> int:
    result = 0
    for bit in text:
        result = result * 2 + int(bit)
    return result


def binary_to_decimal(text: str) -> int:
    return int(text, 2)


assert binary_to_decimal("0") == 0
assert binary_to_decimal("1") == 1
assert binary_to_decimal("101") == 5
assert binary_to_decimal("0011") == 3


# == to_base, convert_to_base, int_to_base
# n: number, num, value
# base: radix, b
# digits: result, text
# rest: remainder, digit
# - Return {n} written in {base} as a string, for bases from 2 to 10.
# - Convert the non-negative integer {n} to a string in a {base} from 2 to 10.
# - Return the digits of {n} in the number system with the given {base}, as a string.
# - Convert {n} to the given {base} and return the digits as a string.
# - Write {n} as a string of digits in the given {base}, which is at most 10.
# ? Give the text of {n} in the positional system of this {base} (2 to 10).
# ? Express {n} in another {base} between 2 and 10, as text.
def to_base(n: int, base: int) -> str:
    if n == 0:
        return "0"
    digits = ""
    while n > 0:
        digits = str(n % base) + digits
        n //= base
    return digits


def to_base(n: int, base: int) -> str:
    digits = []
    while True:
        n, rest = divmod(n, base)
        digits.append(str(rest))
        if n == 0:
            return "".join(reversed(digits))


assert to_base(0, 2) == "0"
assert to_base(5, 2) == "101"
assert to_base(64, 8) == "100"
assert to_base(10, 3) == "101"
assert to_base(907, 10) == "907"


# == to_hex, int_to_hex, decimal_to_hex
# n: number, num, value
# result: text, converted
# symbols: alphabet, hex_digits
# - Return the hexadecimal digits of {n} as a lowercase string without a prefix.
# - Convert the non-negative integer {n} to lowercase hexadecimal without "0x".
# - Return {n} in base 16 as a string with lowercase letters and no prefix.
# - Write {n} in hexadecimal: lowercase letters, without a leading "0x".
# - Convert {n} to a string of lowercase hexadecimal digits, with no prefix.
# ? Give {n} as hex text in small letters, without the usual 0x.
# ? Express {n} in base sixteen with the digits 0 to 9 and a to f.
def to_hex(n: int) -> str:
    return f"{n:x}"


def to_hex(n: int) -> str:
    return hex(n)[2:]


def to_hex(n: int) -> str:
    symbols = "0123456789abcdef"
    result = symbols[n % 16]
    while n >= 16:
        n //= 16
        result = symbols[n % 16] + result
    return result


assert to_hex(0) == "0"
assert to_hex(10) == "a"
assert to_hex(255) == "ff"
assert to_hex(4096) == "1000"


# == to_roman, int_to_roman, roman_numeral
# n: number, num, value
# result: numeral, text, roman
# symbols: numerals, table
# - Convert {n} to a Roman numeral.
# - Return the Roman numeral for {n} as an uppercase string.
# - Write the positive integer {n} in Roman numerals.
# - Return {n} as a Roman numeral such as "XIV".
# - Convert an integer from 1 to 3999 to Roman numerals.
# ? Give the way the Romans wrote {n}, for example "IX" for 9.
# ? Express {n} with the letters I, V, X, L, C, D and M.
def to_roman(n: int) -> str:
    symbols = [
        (1000, "M"),
        (900, "CM"),
        (500, "D"),
        (400, "CD"),
        (100, "C"),
        (90, "XC"),
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    ]
    result = ""
    for amount, symbol in symbols:
        while n >= amount:
            result += symbol
            n -= amount
    return result


def to_roman(n: int) -> str:
    amounts = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]
    symbols = ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"]
    result = ""
    for amount, symbol in zip(amounts, symbols):
        count, n = divmod(n, amount)
        result += symbol * count
    return result


assert to_roman(1) == "I"
assert to_roman(4) == "IV"
assert to_roman(14) == "XIV"
assert to_roman(1994) == "MCMXCIV"


# == from_roman, roman_to_int, parse_roman
# text: numeral, roman, s
# values: amounts, table
# total: result, number
# - Convert the Roman numeral {text} to an integer.
# - Return the value of the Roman numeral {text}.
# - Parse a Roman numeral such as "XIV" and return the number.
# - Return the integer that {text} stands for in Roman numerals.
# - Convert a string of Roman numerals to an integer.
# ? Give the number that the Romans wrote as {text}.
# ? Read {text}, made of I, V, X, L, C, D and M, as a number.
def from_roman(text: str) -> int:
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    total = 0
    previous = 0
    for symbol in reversed(text):
        value = values[symbol]
        if value < previous:
            total -= value
        else:
            total += value
            previous = value
    return total


def from_roman(text: str) -> int:
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    total = 0
    for i, symbol in enumerate(text):
        value = values[symbol]
        if i + 1 < len(text) and value < values[text[i + 1]]:
            total -= value
        else:
            total += value
    return total


assert from_roman("I") == 1
assert from_roman("IX") == 9
assert from_roman("XLII") == 42
assert from_roman("MCMXCIV") == 1994


# == is_leap_year, is_leap, leap_year
# year: y, n
# - Return True if {year} is a leap year.
# - Check whether {year} is a leap year in the Gregorian calendar.
# - Test if {year} is divisible by 4 but not by 100, or by 400.
# - Determine if the given year is a leap year.
# - Return whether {year} has a 29th of February.
# ? Say whether {year} has 366 days.
# ? Does February have 29 days in {year}?
def is_leap_year(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def is_leap_year(year: int) -> bool:
    if year % 400 == 0:
        return True
    if year % 100 == 0:
        return False
    return year % 4 == 0


assert is_leap_year(2024)
assert is_leap_year(2000)
assert not is_leap_year(1900)
assert not is_leap_year(2023)


# == count_set_bits, count_ones, popcount
# n: number, num, value
# count: ones, total, bits
# - Return the number of 1 bits in the binary form of {n}.
# - Count the bits of {n} that are set.
# - Count how many ones the binary representation of {n} has.
# - Return how many bits of the non-negative integer {n} are 1.
# - Compute the population count of {n}.
# ? How many ones are there when {n} is written in base two?
# ? Give the number of set bits of {n}.
def count_set_bits(n: int) -> int:
    count = 0
    while n > 0:
        count += n & 1
        n >>= 1
    return count


def count_set_bits(n: int) -> int:
    return bin(n).count("1")


def count_set_bits(n: int) -> int:
    count = 0
    while n:
        n &= n - 1
        count += 1
    return count


assert count_set_bits(0) == 0
assert count_set_bits(1) == 1
assert count_set_bits(8) == 1
assert count_set_bits(255) == 8


# == count_different_bits, bit_distance, differing_bits
# a: x, first, m
# b: y, second, n
# - Return the number of bits in which {a} and {b} differ.
# - Count the positions at which the binary forms of {a} and {b} differ.
# - Compute the Hamming distance between the integers {a} and {b}.
# - Count how many bits have to be flipped to turn {a} into {b}.
# - Return how many binary digits of {a} and {b} are not the same.
# ? At how many bit positions do {a} and {b} disagree?
# ? Give the Hamming distance of two non-negative integers in binary.
def count_different_bits(a: int, b: int) -> int:
    return bin(a ^ b).count("1")


def count_different_bits(a: int, b: int) -> int:
    difference = a ^ b
    count = 0
    while difference:
        count += difference & 1
        difference >>= 1
    return count


assert count_different_bits(0, 0) == 0
assert count_different_bits(1, 4) == 2
assert count_different_bits(7, 7) == 0
assert count_different_bits(0, 255) == 8


# ==! digital_root, repeated_digit_sum, reduce_to_digit
# n: number, num, value
# - Return the digital root of {n}.
# - Add up the digits of {n} again and again until one digit is left.
# - Replace {n} by the sum of its digits until it is less than 10, and return it.
# - Compute the digital root: repeat the digit sum of {n} down to a single digit.
# - Return the one-digit number left after repeated digit sums of {n}.
# ? Sum the digits of {n} over and over, and give the last single digit.
# ? Which digit remains when the digit sum of {n} is taken repeatedly?
def digital_root(n: int) -> int:
    while n >= 10:
        n = sum(int(digit) for digit in str(n))
    return n


def digital_root(n: int) -> int:
    if n == 0:
        return 0
    return 1 + (n - 1) % 9


assert digital_root(0) == 0
assert digital_root(9) == 9
assert digital_root(38) == 2
assert digital_root(987654) == 3


# == fizzbuzz, fizz_buzz, fizzbuzz_list
# n: limit, count, last
# result: lines, words, output
# i: number, num, k
# - Return the FizzBuzz strings for the numbers from 1 to {n} as a list.
# - List 1 to {n} as text: "Fizz" for multiples of 3, "Buzz" of 5, "FizzBuzz" of both.
# - Return a list of strings: the FizzBuzz game from 1 to {n}.
# - Play FizzBuzz from 1 to {n} inclusive and return a list of strings.
# - Build the list of FizzBuzz answers for 1 to {n}, numbers as strings.
# ? Give the {n} words of the game FizzBuzz in a list, starting with "1".
# ? Count to {n} as strings with "Fizz" for threes, "Buzz" for fives, "FizzBuzz" for both.
def fizzbuzz(n: int) -> list[str]:
    result = []
    for i in range(1, n + 1):
        if i % 15 == 0:
            result.append("FizzBuzz")
        elif i % 3 == 0:
            result.append("Fizz")
        elif i % 5 == 0:
            result.append("Buzz")
        else:
            result.append(str(i))
    return result


def fizzbuzz(n: int) -> list[str]:
    result = []
    for i in range(1, n + 1):
        word = ""
        if i % 3 == 0:
            word += "Fizz"
        if i % 5 == 0:
            word += "Buzz"
        result.append(word or str(i))
    return result


assert fizzbuzz(0) == []
assert fizzbuzz(1) == ["1"]
assert fizzbuzz(5) == ["1", "2", "Fizz", "4", "Buzz"]
assert fizzbuzz(15)[-1] == "FizzBuzz"


# == fibonacci_sequence, first_fibonacci_numbers, fibonacci_list
# n: count, length, size
# sequence: numbers, result, series
# a: previous, first
# b: current, second
# - Return a list of the first {n} Fibonacci numbers, starting with 0 and 1.
# - Generate the first {n} numbers of the Fibonacci sequence 0, 1, 1, 2, ...
# - Return the beginning of the Fibonacci sequence 0, 1, 1, ... with {n} numbers.
# - Build a list of {n} Fibonacci numbers that begins with 0.
# - List {n} Fibonacci numbers from 0 on.
# ? Give the Fibonacci series from 0 as a list of length {n}.
# ? Collect the {n} smallest members of 0, 1, 1, 2, 3, 5, ... in order.
def fibonacci_sequence(n: int) -> list[int]:
    sequence = []
    a, b = 0, 1
    for _ in range(n):
        sequence.append(a)
        a, b = b, a + b
    return sequence


def fibonacci_sequence(n: int) -> list[int]:
    sequence = [0, 1]
    while len(sequence) < n:
        sequence.append(sequence[-1] + sequence[-2])
    return sequence[:n]


assert fibonacci_sequence(0) == []
assert fibonacci_sequence(1) == [0]
assert fibonacci_sequence(2) == [0, 1]
assert fibonacci_sequence(8) == [0, 1, 1, 2, 3, 5, 8, 13]


# == tribonacci, nth_tribonacci, tribonacci_number
# n: index, k
# a: first, x
# b: second, y
# c: third, z
# - Return the {n}-th number of the Tribonacci sequence 0, 1, 1, 2, 4, 7, ...
# - Compute Tribonacci number {n}, where T(0) = 0 and T(1) = T(2) = 1.
# - Return T({n}) for T(0) = 0, T(1) = 1, T(2) = 1, each later one the sum of three.
# - Find the number at index {n} of 0, 1, 1, 2, 4, ..., each the sum of three before.
# - Calculate the Tribonacci number with index {n}; the sequence starts 0, 1, 1.
# ? Give element {n}, from zero, of the series 0, 1, 1, 2, 4, 7, 13, ...
# ? Starting with 0, 1, 1, sum the last three numbers; return number {n} from 0.
def tribonacci(n: int) -> int:
    a, b, c = 0, 1, 1
    for _ in range(n):
        a, b, c = b, c, a + b + c
    return a


def tribonacci(n: int) -> int:
    if n == 0:
        return 0
    if n < 3:
        return 1
    return tribonacci(n - 1) + tribonacci(n - 2) + tribonacci(n - 3)


assert tribonacci(0) == 0
assert tribonacci(2) == 1
assert tribonacci(4) == 4
assert tribonacci(10) == 149


# == lucas, lucas_number, nth_lucas
# n: index, k
# a: previous, first
# b: current, second
# - Return the {n}-th Lucas number, where L(0) = 2 and L(1) = 1.
# - Compute the Lucas number at index {n} of 2, 1, 3, 4, 7, ...
# - Return the number with index {n} in the Lucas sequence, which starts with 2 and 1.
# - Calculate Lucas number {n}, counting from zero: 2, 1, 3, 4, ...
# - Find L({n}) with L(0) = 2, L(1) = 1 and each later one the sum of the two before.
# ? Give element {n}, from zero, of the Lucas series 2, 1, 3, 4, 7, 11.
# ? Starting with 2 and 1, sum the last two numbers; return the one at index {n}.
def lucas(n: int) -> int:
    a, b = 2, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def lucas(n: int) -> int:
    if n == 0:
        return 2
    if n == 1:
        return 1
    return lucas(n - 1) + lucas(n - 2)


assert lucas(0) == 2
assert lucas(1) == 1
assert lucas(5) == 11
assert lucas(10) == 123


# == binomial, binomial_coefficient, choose
# n: total, size
# k: chosen, picked
# result: value, answer
# - Return the number of ways to choose {k} of {n} items.
# - Compute the binomial coefficient of {n} and {k}.
# - Calculate {n} choose {k}.
# - Return how many subsets of size {k} a set of {n} elements has.
# - Return the binomial coefficient {n} over {k}, which is 0 if {k} is above {n}.
# ? In how many ways can {k} things be picked from {n} things?
# ? Evaluate C({n}, {k}).
def binomial(n: int, k: int) -> int:
    if k < 0 or k > n:
        return 0
    result = 1
    for i in range(k):
        result = result * (n - i) // (i + 1)
    return result


def binomial(n: int, k: int) -> int:
    if k < 0 or k > n:
        return 0
    return math.factorial(n) // (math.factorial(k) * math.factorial(n - k))


def binomial(n: int, k: int) -> int:
    if k < 0 or k > n:
        return 0
    if k == 0 or k == n:
        return 1
    return binomial(n - 1, k - 1) + binomial(n - 1, k)


assert binomial(5, 2) == 10
assert binomial(6, 0) == 1
assert binomial(6, 6) == 1
assert binomial(3, 4) == 0


# == pascal_row, pascals_row, row_of_pascal
# n: index, number, k
# row: numbers, line
# - Return row {n} of Pascal's triangle as a list, where row 0 is [1].
# - Compute the row of Pascal's triangle with index {n}, counting from 0.
# - Return the {n}-th row of Pascal's triangle; the row with index 0 is [1].
# - Build row number {n} of Pascal's triangle, so that 0 gives [1] and 1 gives [1, 1].
# - Return the list of the {n} + 1 binomial coefficients in row {n} of Pascal's triangle.
# ? Give the line of Pascal's triangle at index {n}; the top line has index 0.
# ? List the numbers in row {n} of Pascal's triangle, where row 2 is [1, 2, 1].
def pascal_row(n: int) -> list[int]:
    row = [1]
    for _ in range(n):
        row = [1] + [row[i] + row[i + 1] for i in range(len(row) - 1)] + [1]
    return row


def pascal_row(n: int) -> list[int]:
    row = [1]
    for k in range(n):
        row.append(row[-1] * (n - k) // (k + 1))
    return row


def pascal_row(n: int) -> list[int]:
    return [math.comb(n, i) for i in range(n + 1)]


assert pascal_row(0) == [1]
assert pascal_row(1) == [1, 1]
assert pascal_row(4) == [1, 4, 6, 4, 1]


# == pascal_triangle, pascals_triangle, generate_pascal
# n: count, height, num_rows
# triangle: result, lines
# row: line, numbers
# - Return the first {n} rows of Pascal's triangle as a list of lists.
# - Build Pascal's triangle with {n} rows.
# - Generate the {n} topmost rows of Pascal's triangle, each one a list.
# - Return Pascal's triangle of height {n} as a list of rows.
# - List {n} rows of Pascal's triangle, beginning with [1].
# ? Give Pascal's triangle down to {n} rows, one list per row.
# ? Make a triangle of {n} rows where each inner number is the sum of the two above.
def pascal_triangle(n: int) -> list[list[int]]:
    triangle = []
    for i in range(n):
        row = [1] * (i + 1)
        for j in range(1, i):
            row[j] = triangle[i - 1][j - 1] + triangle[i - 1][j]
        triangle.append(row)
    return triangle


def pascal_triangle(n: int) -> list[list[int]]:
    triangle = []
    row = [1]
    for _ in range(n):
        triangle.append(row)
        row = [1] + [a + b for a, b in zip(row, row[1:])] + [1]
    return triangle


assert pascal_triangle(0) == []
assert pascal_triangle(1) == [[1]]
assert pascal_triangle(4) == [[1], [1, 1], [1, 2, 1], [1, 3, 3, 1]]


# == multiplication_table, times_table, make_multiplication_table
# n: size, count, number
# table: result, rows
# - Return the multiplication table of 1 to {n} as a list of {n} rows.
# - Build a multiplication table with {n} rows and {n} columns as a list of lists.
# - Return a list of {n} lists in which row i, column j holds i * j, from 1.
# - Make the table of all products of the numbers 1 to {n}, row by row.
# - Create an {n} by {n} multiplication table, starting at 1 * 1.
# ? Give the products of 1 to {n} with 1 to {n}, one inner list per row.
# ? Compute a square grid of side {n} with the products of row and column numbers from 1.
def multiplication_table(n: int) -> list[list[int]]:
    return [[i * j for j in range(1, n + 1)] for i in range(1, n + 1)]


def multiplication_table(n: int) -> list[list[int]]:
    table = []
    for i in range(1, n + 1):
        row = []
        for j in range(1, n + 1):
            row.append(i * j)
        table.append(row)
    return table


assert multiplication_table(0) == []
assert multiplication_table(1) == [[1]]
assert multiplication_table(3) == [[1, 2, 3], [2, 4, 6], [3, 6, 9]]


# == first_multiples, multiples_of, get_multiples
# n: number, num, factor
# count: amount, how_many, k
# - Return the first {count} multiples of {n}, starting with {n} itself.
# - List {count} multiples of {n}: {n}, 2 * {n}, 3 * {n} and so on.
# - Return a list of {n} times 1, {n} times 2, up to {n} times {count}.
# - Compute the multiples of {n} from 1 * {n} to {count} * {n}.
# - Build a list of the {count} smallest positive multiples of the positive {n}.
# ? Give {n}, twice {n}, three times {n} and so on, {count} numbers in all.
# ? Multiply {n} by every integer from 1 to {count} and list the products.
def first_multiples(n: int, count: int) -> list[int]:
    return [n * i for i in range(1, count + 1)]


def first_multiples(n: int, count: int) -> list[int]:
    multiples = []
    for i in range(1, count + 1):
        multiples.append(n * i)
    return multiples


assert first_multiples(3, 4) == [3, 6, 9, 12]
assert first_multiples(7, 1) == [7]
assert first_multiples(5, 0) == []


# == simple_interest, calculate_simple_interest, interest_earned
# principal: amount, capital, p
# rate: percent, r
# years: time, t
# - Return the simple interest on {principal} at {rate} percent for {years} years.
# - Compute the simple interest as {principal} * {rate} * {years} / 100.
# - Calculate the interest without compounding; {rate} is in percent per year.
# - Return only the simple interest that {principal} earns at {rate} percent a year.
# - Find the simple interest for {years} years at a yearly rate of {rate} percent.
# ? How much interest, not compounded, does {principal} earn at {rate} percent a year?
# ? Give {rate} percent of {principal} for each of {years} years, all together.
def simple_interest(principal: float, rate: float, years: float) -> float:
    return principal * rate * years / 100


assert simple_interest(1000, 5, 2) == 100.0
assert simple_interest(200, 10, 0) == 0.0
assert simple_interest(500, 4, 1) == 20.0


# == compound_interest, compound_amount, balance_after
# principal: amount, capital, start
# rate: yearly_rate, growth, r
# years: periods, t
# balance: total, result
# - Return the balance after {years} years when {principal} grows by {rate} percent a year.
# - Compute the final amount of {principal} at {rate} percent compound interest.
# - Return the total after {years} years at {rate} percent, compounded once a year.
# - Calculate what {principal} is worth after {years} years at {rate} percent a year.
# - Return {principal} with the compound interest of {years} years at {rate} percent.
# ? How much money does {principal} become in {years} years at {rate} percent each year?
# ? Let {principal} grow by {rate} percent {years} times and return the new amount.
def compound_interest(principal: float, rate: float, years: int) -> float:
    return principal * (1 + rate / 100) ** years


def compound_interest(principal: float, rate: float, years: int) -> float:
    balance = principal
    for _ in range(years):
        balance += balance * rate / 100
    return balance


assert round(compound_interest(1000, 5, 2), 2) == 1102.5
assert round(compound_interest(100, 10, 1), 2) == 110.0
assert round(compound_interest(500.0, 3, 0), 2) == 500.0
assert round(compound_interest(2000, 4, 10), 2) == 2960.49


# == percentage, percent_of_total, as_percentage
# part: value, amount, portion
# whole: total, base
# - Return what percentage of {whole} {part} is.
# - Compute {part} as a percentage of {whole}.
# - Calculate how many percent of {whole} the number {part} is.
# - Return {part} divided by {whole}, times 100.
# - Express {part} in percent of {whole}.
# ? How many percent does {part} make of {whole}?
# ? Give the share of {part} in {whole} as a number from 0 to 100.
def percentage(part: float, whole: float) -> float:
    return part / whole * 100


assert percentage(1, 4) == 25.0
assert percentage(5, 5) == 100.0
assert percentage(0, 9) == 0.0
assert percentage(3, 2) == 150.0


# == apply_discount, discounted_price, price_after_discount
# price: amount, cost
# percent: discount, rate
# - Return {price} reduced by {percent} percent.
# - Compute the price after a discount of {percent} percent.
# - Calculate what is to be paid when {percent} percent are taken off {price}.
# - Return the reduced price for a discount given in percent.
# - Lower {price} by {percent} percent and return the new price.
# ? What does something cost that is {percent} percent cheaper than {price}?
# ? Take {percent} percent off {price} and give the rest.
def apply_discount(price: float, percent: float) -> float:
    return price * (1 - percent / 100)


def apply_discount(price: float, percent: float) -> float:
    return price - price * percent / 100


assert round(apply_discount(100, 20), 2) == 80.0
assert round(apply_discount(50, 0), 2) == 50.0
assert round(apply_discount(19.99, 100), 2) == 0.0
assert round(apply_discount(80, 25), 2) == 60.0


# == solve_quadratic, quadratic_roots, solve_quadratic_equation
# discriminant: d, delta
# root: r, square_root
# - Return the real roots of {a} * x**2 + {b} * x + {c} = 0 as a sorted list.
# - Solve {a} * x**2 + {b} * x + {c} = 0 for real x; return a sorted list of the roots.
# - Return a list of the distinct real solutions of a quadratic equation, in ascending order.
# - Find the real roots of the quadratic with coefficients {a}, {b}, {c}, smallest first.
# - Return the sorted list of real roots of a quadratic equation, empty if there are none.
# ? List the real numbers x with {a} * x**2 + {b} * x + {c} = 0, in increasing order.
# ? Give the zero, one or two real zeros of a quadratic polynomial as an ordered list.
def solve_quadratic(a: float, b: float, c: float) -> list[float]:
    discriminant = b**2 - 4 * a * c
    if discriminant < 0:
        return []
    if discriminant == 0:
        return [-b / (2 * a)]
    root = math.sqrt(discriminant)
    return sorted([(-b - root) / (2 * a), (-b + root) / (2 * a)])


def solve_quadratic(a: float, b: float, c: float) -> list[float]:
    discriminant = b * b - 4 * a * c
    if discriminant < 0:
        return []
    root = discriminant**0.5
    return sorted({(-b - root) / (2 * a), (-b + root) / (2 * a)})


assert solve_quadratic(1, -3, 2) == [1.0, 2.0]
assert solve_quadratic(1, 2, 1) == [-1.0]
assert solve_quadratic(1, 0, 1) == []
assert solve_quadratic(-1, 0, 4) == [-2.0, 2.0]
