"""Strings."""

import re
import string
from collections import Counter


# == reverse_string, string_reverse, reverse_text
# text: s, string, word
# result: reversed_text, output, backwards
# char: c, ch, letter
# - Return {text} reversed.
# - Reverse the string {text}.
# - Return the characters of {text} in reverse order.
# - Return a copy of the string that reads backwards.
# - Turn the given string around, last character first.
# - Return the reverse of a string.
# ? Give back {text} from its last character to its first.
# ? Spell {text} backwards.
def reverse_string(text: str) -> str:
    return text[::-1]


def reverse_string(text: str) -> str:
    result = ""
    for char in text:
        result = char + result
    return result


def reverse_string(text: str) -> str:
    return "".join(reversed(text))


assert reverse_string("hello") == "olleh"
assert reverse_string("a") == "a"
assert reverse_string("") == ""
assert reverse_string("ab cd") == "dc ba"


# == is_palindrome, check_palindrome, palindrome
# text: s, string, word
# left: start, i, low
# right: stop, j, high
# - Return True if {text} is a palindrome.
# - Check whether {text} reads the same forwards and backwards.
# - Check if a string is a palindrome.
# - Return whether {text} equals its reverse.
# - Determine if the given string is the same when reversed.
# - Test if {text} is a palindrome.
# ? Say whether {text} is spelled the same from both sides.
# ? Return True when turning {text} around does not change it.
def is_palindrome(text: str) -> bool:
    return text == text[::-1]


def is_palindrome(text: str) -> bool:
    left, right = 0, len(text) - 1
    while left < right:
        if text[left] != text[right]:
            return False
        left += 1
        right -= 1
    return True


def is_palindrome(text: str) -> bool:
    for i in range(len(text) // 2):
        if text[i] != text[-1 - i]:
            return False
    return True


assert is_palindrome("racecar")
assert is_palindrome("noon")
assert is_palindrome("")
assert is_palindrome("x")
assert not is_palindrome("hello")


# == is_palindrome_phrase, is_phrase_palindrome, is_palindrome_sentence
# text: s, phrase, sentence
# cleaned: letters, normalized, chars
# char: c, ch, symbol
# - Return True if {text} is a palindrome, ignoring case, spaces and punctuation.
# - Check whether the letters and digits of {text} form a palindrome, in any case.
# - Check if a sentence reads the same backwards when only letters and digits count.
# - Test for a palindrome, ignoring everything but letters and digits, and ignoring case.
# - Return whether {text} is a palindrome without regard to case and non-alphanumerics.
# ? Say if {text} is a palindrome; only letters and digits matter, their case does not.
# ? Return True when {text} reads the same both ways, leaving out spaces, signs and case.
def is_palindrome_phrase(text: str) -> bool:
    cleaned = [char.lower() for char in text if char.isalnum()]
    return cleaned == cleaned[::-1]


def is_palindrome_phrase(text: str) -> bool:
    cleaned = ""
    for char in text.lower():
        if char.isalnum():
            cleaned += char
    return cleaned == cleaned[::-1]


def is_palindrome_phrase(text: str) -> bool:
    cleaned = re.sub(r"[^a-z0-9]", "", text.lower())
    return cleaned == cleaned[::-1]


assert is_palindrome_phrase("A man, a plan, a canal: Panama!")
assert is_palindrome_phrase("No lemon, no melon")
assert is_palindrome_phrase("")
assert not is_palindrome_phrase("Hello, world")


# == count_vowels, vowel_count, number_of_vowels
# text: s, string, word
# count: total, counter, result
# char: c, ch, letter
# - Return the number of vowels in {text}.
# - Count the vowels (a, e, i, o, u) in {text}.
# - Count how many vowels {text} contains, in upper or lower case.
# - Return how many characters of {text} are vowels.
# - Count the vowels in a string, ignoring case.
# ? Give the number of letters of {text} that are a, e, i, o or u in either case.
# ? How many vowels are there in {text}?
def count_vowels(text: str) -> int:
    count = 0
    for char in text.lower():
        if char in "aeiou":
            count += 1
    return count


def count_vowels(text: str) -> int:
    return sum(1 for char in text if char in "aeiouAEIOU")


def count_vowels(text: str) -> int:
    vowels = set("aeiou")
    return sum(char in vowels for char in text.lower())


assert count_vowels("hello world") == 3
assert count_vowels("AEIOU") == 5
assert count_vowels("rhythm") == 0
assert count_vowels("") == 0


# == count_consonants, consonant_count, number_of_consonants
# text: s, string, word
# count: total, counter, result
# char: c, ch, letter
# - Return the number of consonants in {text}.
# - Count the letters of {text} that are not vowels.
# - Count how many consonants {text} contains, in upper or lower case.
# - Return how many letters in {text} are consonants, ignoring case.
# - Count the consonants in a string.
# ? Give the number of letters in {text} other than a, e, i, o and u.
# ? How many consonants are there in {text}?
def count_consonants(text: str) -> int:
    count = 0
    for char in text.lower():
        if char.isalpha() and char not in "aeiou":
            count += 1
    return count


def count_consonants(text: str) -> int:
    return sum(1 for char in text.lower() if char in "bcdfghjklmnpqrstvwxyz")


assert count_consonants("hello world") == 7
assert count_consonants("AEIOU") == 0
assert count_consonants("B2B") == 2
assert count_consonants("") == 0


# == count_char, count_character, count_letter
# text: s, string, word
# char: c, letter, target
# current: ch, character, other
# count: total, result, counter
# - Return how many times {char} occurs in {text}.
# - Count the occurrences of {char} in {text}.
# - Count how often the character {char} appears in {text}.
# - Return the number of times a character appears in a string.
# - Return the number of characters in {text} that are equal to {char}.
# ? Give the number of times that {text} contains the character {char}.
# ? How often does {char} stand in {text}?
def count_char(text: str, char: str) -> int:
    count = 0
    for current in text:
        if current == char:
            count += 1
    return count


def count_char(text: str, char: str) -> int:
    return text.count(char)


def count_char(text: str, char: str) -> int:
    return sum(1 for current in text if current == char)


assert count_char("banana", "a") == 3
assert count_char("banana", "x") == 0
assert count_char("", "a") == 0
assert count_char("Anna", "a") == 1


# == capitalize_words, title_case, to_title_case
# text: s, sentence, string
# word: w, part, token
# words: parts, result, tokens
# - Capitalize the first letter of every word in {text}.
# - Return {text} with each word capitalized.
# - Make every word of {text} start with a capital letter.
# - Convert {text} to title case.
# - Return the sentence with the first letter of each word in upper case.
# ? Give {text} back with a capital letter at the start of all words.
# ? Write each word of {text} with a big first letter.
def capitalize_words(text: str) -> str:
    return " ".join(word.capitalize() for word in text.split())


def capitalize_words(text: str) -> str:
    words = []
    for word in text.split():
        words.append(word[0].upper() + word[1:].lower())
    return " ".join(words)


assert capitalize_words("hello world") == "Hello World"
assert capitalize_words("the quick brown fox") == "The Quick Brown Fox"
assert capitalize_words("python") == "Python"
assert capitalize_words("") == ""


# == capitalize_first, capitalize_first_letter, upper_first
# text: s, string, word
# - Return {text} with its first letter in upper case and the rest unchanged.
# - Capitalize only the first character of {text}; leave the others as they are.
# - Make the first letter of {text} upper case and keep everything else.
# - Return the string with an upper-case first character, otherwise unchanged.
# - Turn the first character of {text} into a capital, leaving the rest alone.
# ? Give {text} with a capital at its start, touching no other character.
# ? Change just the first letter of {text} to upper case.
def capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def capitalize_first(text: str) -> str:
    if not text:
        return ""
    return text[0].upper() + text[1:]


assert capitalize_first("hello world") == "Hello world"
assert capitalize_first("iPhone") == "IPhone"
assert capitalize_first("x") == "X"
assert capitalize_first("") == ""


# == to_uppercase, to_upper, make_uppercase
# text: s, string, word
# - Return {text} in upper case.
# - Convert {text} to upper case.
# - Return the string with all letters in upper case.
# - Turn every letter of {text} into a capital letter.
# - Make all letters of the string uppercase.
# ? Give {text} written in capitals only.
# ? Replace each lowercase letter of {text} by its capital.
def to_uppercase(text: str) -> str:
    return text.upper()


assert to_uppercase("hello") == "HELLO"
assert to_uppercase("Abc 1") == "ABC 1"
assert to_uppercase("") == ""


# == count_case, count_upper_lower, count_upper_and_lower
# text: s, string, sentence
# upper: uppercase, capitals, n_upper
# lower: lowercase, smalls, n_lower
# char: c, ch, letter
# - Return the number of upper-case and of lower-case letters in {text} as a tuple.
# - Count upper-case and lower-case letters; return a pair (upper, lower).
# - Return a tuple with the counts of uppercase and lowercase letters in {text}.
# - Count how many letters of {text} are upper case and how many are lower case.
# - Return (uppercase count, lowercase count) for a string.
# ? Give two numbers: how many capitals {text} has, and how many small letters.
# ? Return a pair: the number of capital letters in {text}, then that of lower-case ones.
def count_case(text: str) -> tuple[int, int]:
    upper = 0
    lower = 0
    for char in text:
        if char.isupper():
            upper += 1
        elif char.islower():
            lower += 1
    return upper, lower


def count_case(text: str) -> tuple[int, int]:
    upper = sum(1 for char in text if char.isupper())
    lower = sum(1 for char in text if char.islower())
    return upper, lower


assert count_case("Hello World") == (2, 8)
assert count_case("ABC") == (3, 0)
assert count_case("123") == (0, 0)
assert count_case("") == (0, 0)


# == remove_vowels, strip_vowels, without_vowels
# text: s, string, word
# char: c, ch, letter
# result: output, kept, remaining
# - Return {text} without its vowels.
# - Remove all vowels from {text}.
# - Remove the letters a, e, i, o and u from {text}, in upper and lower case.
# - Return a copy of the string with every vowel removed.
# - Delete the vowels of both cases from the string.
# ? Leave out every vowel, large or small, of {text}.
# ? Give back what remains of {text} when its vowels are gone.
def remove_vowels(text: str) -> str:
    return "".join(char for char in text if char not in "aeiouAEIOU")


def remove_vowels(text: str) -> str:
    result = ""
    for char in text:
        if char.lower() not in "aeiou":
            result += char
    return result


assert remove_vowels("hello world") == "hll wrld"
assert remove_vowels("AEIOU") == ""
assert remove_vowels("rhythm") == "rhythm"
assert remove_vowels("") == ""


# == remove_spaces, strip_spaces, delete_spaces
# text: s, string, sentence
# char: c, ch, letter
# result: output, kept, remaining
# - Return {text} without any spaces.
# - Remove all spaces from {text}.
# - Delete every space in {text}, also those between words.
# - Return the string with all space characters removed.
# - Remove the spaces from a string.
# ? Give {text} with each blank between and around its words taken out.
# ? Join the pieces of {text} by dropping all spaces.
def remove_spaces(text: str) -> str:
    return text.replace(" ", "")


def remove_spaces(text: str) -> str:
    result = ""
    for char in text:
        if char != " ":
            result += char
    return result


def remove_spaces(text: str) -> str:
    return "".join(char for char in text if char != " ")


assert remove_spaces("hello world") == "helloworld"
assert remove_spaces("  a b  c ") == "abc"
assert remove_spaces("abc") == "abc"
assert remove_spaces("") == ""


# == remove_punctuation, strip_punctuation, delete_punctuation
# text: s, sentence, value
# char: c, ch, symbol
# result: output, kept, cleaned
# - Return {text} without punctuation.
# - Remove all punctuation characters from {text}.
# - Delete signs such as commas, periods and exclamation marks from {text}.
# - Return a copy of the text with its punctuation removed.
# - Remove punctuation, keeping letters, digits and spaces.
# ? Give {text} with every punctuation mark left out.
# ? Drop commas, dots, question marks and the like from {text}.
def remove_punctuation(text: str) -> str:
    return "".join(char for char in text if char not in string.punctuation)


def remove_punctuation(text: str) -> str:
    return text.translate(str.maketrans("", "", string.punctuation))


def remove_punctuation(text: str) -> str:
    result = ""
    for char in text:
        if char not in string.punctuation:
            result += char
    return result


assert remove_punctuation("Hello, world!") == "Hello world"
assert remove_punctuation("a.b;c") == "abc"
assert remove_punctuation("no signs") == "no signs"
assert remove_punctuation("?!.") == ""


# == remove_digits, strip_digits, without_digits
# text: s, string, value
# char: c, ch, symbol
# result: output, kept, remaining
# - Return {text} without its digits.
# - Remove all digits from {text}.
# - Delete every digit 0 to 9 from {text}.
# - Return the string with all digit characters removed.
# - Keep everything in {text} but the digits.
# ? Give {text} with each of its digits left out.
# ? Drop the numerals from {text}.
def remove_digits(text: str) -> str:
    return "".join(char for char in text if not char.isdigit())


def remove_digits(text: str) -> str:
    result = ""
    for char in text:
        if not char.isdigit():
            result += char
    return result


def remove_digits(text: str) -> str:
    return re.sub(r"\d", "", text)


assert remove_digits("a1b22c") == "abc"
assert remove_digits("2024") == ""
assert remove_digits("no digits") == "no digits"
assert remove_digits("") == ""


# == remove_duplicate_chars, remove_duplicates_from_string, unique_characters
# text: s, string, word
# char: c, ch, letter
# result: output, kept, unique
# seen: found, known, used
# - Remove repeated characters from {text}, keeping the first of each.
# - Return {text} with only the first occurrence of every character.
# - Return the distinct characters of {text} as a string, in order of appearance.
# - Keep each character of {text} once, in the original order.
# - Remove duplicate characters from a string without changing the order.
# ? Give a string of the different characters in {text}, ordered as they first appear.
# ? Drop from {text} each character that has already occurred before.
def remove_duplicate_chars(text: str) -> str:
    result = ""
    for char in text:
        if char not in result:
            result += char
    return result


def remove_duplicate_chars(text: str) -> str:
    seen = set()
    result = []
    for char in text:
        if char not in seen:
            seen.add(char)
            result.append(char)
    return "".join(result)


def remove_duplicate_chars(text: str) -> str:
    return "".join(dict.fromkeys(text))


assert remove_duplicate_chars("banana") == "ban"
assert remove_duplicate_chars("hello") == "helo"
assert remove_duplicate_chars("abc") == "abc"
assert remove_duplicate_chars("") == ""


# == squeeze, remove_consecutive_duplicates, collapse_repeats
# text: s, string, word
# char: c, ch, letter
# result: output, kept, squeezed
# - Replace each run of equal characters in {text} by a single one.
# - Remove characters of {text} that equal the character right before them.
# - Collapse consecutive repeated characters, so that "aabba" becomes "aba".
# - Return {text} with consecutive duplicate characters removed.
# - Reduce every group of neighbouring equal characters to one character.
# ? Write only one character for each stretch of the same character in {text}.
# ? Drop every character of {text} whose left neighbour is the same.
def squeeze(text: str) -> str:
    result = ""
    for char in text:
        if not result or char != result[-1]:
            result += char
    return result


def squeeze(text: str) -> str:
    result = text[:1]
    for i in range(1, len(text)):
        if text[i] != text[i - 1]:
            result += text[i]
    return result


assert squeeze("aabba") == "aba"
assert squeeze("bookkeeper") == "bokeper"
assert squeeze("abc") == "abc"
assert squeeze("") == ""


# == first_unique_char, first_non_repeating_char, first_unique_character
# text: s, string, word
# char: c, ch, letter
# counts: freq, frequencies, occurrences
# - Return the first character that occurs only once in {text}, or None.
# - Find the first non-repeating character of {text}; return None if there is none.
# - Return the first character of {text} that is not repeated, or None if all are.
# - Find the first character which appears exactly once, or return None.
# - Return the first unique character of a string, or None if it has none.
# ? Give the earliest character that stands just once in {text}; None if none does.
# ? Which character of {text} is the first with no second occurrence? None without any.
def first_unique_char(text: str) -> str | None:
    counts = Counter(text)
    for char in text:
        if counts[char] == 1:
            return char
    return None


def first_unique_char(text: str) -> str | None:
    counts = {}
    for char in text:
        counts[char] = counts.get(char, 0) + 1
    for char in text:
        if counts[char] == 1:
            return char
    return None


def first_unique_char(text: str) -> str | None:
    for char in text:
        if text.count(char) == 1:
            return char
    return None


assert first_unique_char("swiss") == "w"
assert first_unique_char("abcab") == "c"
assert first_unique_char("aabb") is None
assert first_unique_char("") is None


# == most_common_char, most_frequent_char, most_common_letter
# text: s, string, word
# char: c, ch, letter
# counts: freq, frequencies, occurrences
# - Return the character that occurs most often in {text}.
# - Find the most common character of {text}.
# - Return the most frequent character; of several, the one that appears first.
# - Find the character with the most occurrences in {text}.
# - Return the character of {text} with the highest count.
# ? Give the character which {text} contains more often than any other.
# ? Which character appears in {text} the most times?
def most_common_char(text: str) -> str:
    return Counter(text).most_common(1)[0][0]


def most_common_char(text: str) -> str:
    counts = {}
    for char in text:
        counts[char] = counts.get(char, 0) + 1
    return max(counts, key=counts.get)


def most_common_char(text: str) -> str:
    return max(text, key=text.count)


assert most_common_char("banana") == "a"
assert most_common_char("hello") == "l"
assert most_common_char("x") == "x"


# == count_characters, char_frequency, character_counts
# text: s, string, word
# char: c, ch, letter
# counts: freq, frequencies, result
# - Return a dictionary with the number of occurrences of each character in {text}.
# - Count how often each character occurs in {text}; return a dict.
# - Return a dict that maps every character of {text} to its count.
# - Count all characters of {text}, spaces included, in a dictionary.
# - Build a dictionary of character frequencies.
# ? Tell for each character of {text} how many times it stands there, as a dict.
# ? Map the different characters of {text} to how often they appear.
def count_characters(text: str) -> dict[str, int]:
    counts = {}
    for char in text:
        counts[char] = counts.get(char, 0) + 1
    return counts


def count_characters(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for char in text:
        if char in counts:
            counts[char] += 1
        else:
            counts[char] = 1
    return counts


def count_characters(text: str) -> dict[str, int]:
    return dict(Counter(text))


assert count_characters("hello") == {"h": 1, "e": 1, "l": 2, "o": 1}
assert count_characters("a a") == {"a": 2, " ": 1}
assert count_characters("") == {}


# == letter_frequencies, letter_counts, count_letters
# text: s, sentence, string
# char: c, ch, letter
# counts: freq, frequencies, result
# - Count each letter of {text} in lower case, ignoring all other characters.
# - Return a dict of lower-case letters and how often they occur in {text}, in any case.
# - Count the letters of {text} without regard to case; skip spaces, digits and signs.
# - Map each letter of the lowercased {text} to its count; only letters are counted.
# - Return letter counts as a dict, with upper case counted as lower case.
# ? Tell how often each letter occurs, big and small taken together, nothing but letters.
# ? Make a dict from the letters of {text}, all lower case, to their number.
def letter_frequencies(text: str) -> dict[str, int]:
    counts = {}
    for char in text.lower():
        if char.isalpha():
            counts[char] = counts.get(char, 0) + 1
    return counts


def letter_frequencies(text: str) -> dict[str, int]:
    return dict(Counter(char for char in text.lower() if char.isalpha()))


assert letter_frequencies("Hello!") == {"h": 1, "e": 1, "l": 2, "o": 1}
assert letter_frequencies("Aa a1") == {"a": 3}
assert letter_frequencies("123") == {}


# == is_anagram, are_anagrams, anagrams
# first: a, s, word1
# second: b, t, word2
# counts: freq, remaining, letters
# - Return True if {first} and {second} are anagrams.
# - Check whether {first} has the same letters as {second}, in any order.
# - Check if two words are anagrams of each other.
# - Return whether {second} can be made by rearranging the letters of {first}.
# - Determine if two strings consist of the same characters, equally often.
# ? Say whether moving the letters of {first} around can give {second}.
# ? Are {first} and {second} made of exactly the same letters?
def is_anagram(first: str, second: str) -> bool:
    return sorted(first) == sorted(second)


def is_anagram(first: str, second: str) -> bool:
    return Counter(first) == Counter(second)


def is_anagram(first: str, second: str) -> bool:
    if len(first) != len(second):
        return False
    counts = {}
    for char in first:
        counts[char] = counts.get(char, 0) + 1
    for char in second:
        if counts.get(char, 0) == 0:
            return False
        counts[char] -= 1
    return True


assert is_anagram("listen", "silent")
assert not is_anagram("hello", "world")
assert not is_anagram("aab", "abb")
assert not is_anagram("ab", "abc")
assert is_anagram("", "")


# == is_pangram, check_pangram, has_every_letter
# text: s, sentence, phrase
# letter: char, c, ch
# letters: chars, found, seen
# - Return True if {text} contains every letter of the alphabet.
# - Check whether {text} is a pangram.
# - Check if a sentence uses all letters from a to z, ignoring case.
# - Return whether all 26 letters occur in {text}, in upper or lower case.
# - Determine if the given sentence is a pangram.
# ? Say whether no letter of the alphabet is missing in {text}.
# ? Does {text} have each letter from a to z at least once, in either case?
def is_pangram(text: str) -> bool:
    return set(string.ascii_lowercase) <= set(text.lower())


def is_pangram(text: str) -> bool:
    letters = {char for char in text.lower() if "a" <= char <= "z"}
    return len(letters) == 26


def is_pangram(text: str) -> bool:
    for letter in "abcdefghijklmnopqrstuvwxyz":
        if letter not in text.lower():
            return False
    return True


assert is_pangram("The quick brown fox jumps over the lazy dog")
assert not is_pangram("Hello world")
assert not is_pangram("")
assert is_pangram("abcdefghijklmnopqrstuvwxyz")


# ==! is_isogram, check_isogram
# text: word, s, string
# char: letter, c, ch
# seen: found, known, used
# - Return True if no letter occurs more than once in {text}, ignoring case.
# - Check whether {text} is an isogram.
# - Check if a word has no repeating letters, ignoring case.
# - Return whether every letter of {text} is used only once, in either case.
# - Determine if the given word is an isogram (no letter twice).
# ? Say whether all letters of {text} are different, whatever their case.
# ? Return False if some letter stands in {text} twice, upper and lower case alike.
def is_isogram(text: str) -> bool:
    return len(set(text.lower())) == len(text)


def is_isogram(text: str) -> bool:
    seen = set()
    for char in text.lower():
        if char in seen:
            return False
        seen.add(char)
    return True


assert is_isogram("python")
assert not is_isogram("hello")
assert not is_isogram("Alpha")
assert is_isogram("")


# == run_length_encode, rle_encode, encode_runs
# text: s, string, word
# result: encoded, output, pieces
# count: run, n, length
# i: index, pos, at
# - Return the run-length encoding of {text}, such as "a3b2c1" for "aaabbc".
# - Encode {text} as characters followed by counts: "aab" becomes "a2b1".
# - Run-length encode a string: every run becomes its character and its length.
# - Replace each run of equal characters by the character and a count, even if it is 1.
# - Return each character of {text} with the length of its run: "aaab" gives "a3b1".
# ? Write every stretch of one character as that character and how long it is ("x4y1").
# ? Shorten "wwwb" to "w3b1", and any other string alike.
def run_length_encode(text: str) -> str:
    result = ""
    i = 0
    while i < len(text):
        count = 1
        while i + count < len(text) and text[i + count] == text[i]:
            count += 1
        result += text[i] + str(count)
        i += count
    return result


def run_length_encode(text: str) -> str:
    if not text:
        return ""
    result = []
    previous = text[0]
    count = 0
    for char in text:
        if char == previous:
            count += 1
        else:
            result.append(f"{previous}{count}")
            previous = char
            count = 1
    result.append(f"{previous}{count}")
    return "".join(result)


assert run_length_encode("aaabbc") == "a3b2c1"
assert run_length_encode("abc") == "a1b1c1"
assert run_length_encode("zzzzzzzzzzzz") == "z12"
assert run_length_encode("") == ""


# == run_length_decode, rle_decode, decode_runs
# text: encoded, s, code
# result: decoded, output, plain
# char: letter, c, ch
# digits: number, amount, count
# - Decode a run-length encoding such as "a3b2", which gives "aaabb".
# - Return the string whose run-length encoding is {text}, as in "a3b1" for "aaab".
# - Expand {text}, where each character is followed by its count: "x2y1" gives "xxy".
# - Undo a run-length encoding: repeat each character as often as the number behind it.
# - Turn characters followed by counts back into a string: "a2b3" becomes "aabbb".
# ? Write out every character of {text} as many times as the number after it says.
# ? Turn "w3b1" back into "wwwb", and any other code of this kind alike.
def run_length_decode(text: str) -> str:
    result = ""
    i = 0
    while i < len(text):
        char = text[i]
        i += 1
        digits = ""
        while i < len(text) and text[i].isdigit():
            digits += text[i]
            i += 1
        result += char * int(digits)
    return result


def run_length_decode(text: str) -> str:
    result = []
    for char, digits in re.findall(r"(\D)(\d+)", text):
        result.append(char * int(digits))
    return "".join(result)


assert run_length_decode("a3b2c1") == "aaabbc"
assert run_length_decode("z12") == "zzzzzzzzzzzz"
assert run_length_decode("x1") == "x"
assert run_length_decode("") == ""


# == compress_string, string_compression, compress
# text: s, string, word
# pieces: parts, groups, blocks
# compressed: shortened, packed, result
# count: run, n, length
# - Compress {text} to characters with counts, or return it if that is not shorter.
# - Write runs as in "a3b2", but return {text} itself unless the result is shorter.
# - Return "a5b1" for "aaaaab"; return {text} unchanged if that saves nothing.
# - Replace runs by character and count; keep {text} if this makes it no shorter.
# - Compress a string by counting repeats, returning the original if not shorter.
# ? Count repeated characters ("aaab" gives "a3b1"); keep {text} when nothing is gained.
# ? Return the shorter of {text} and its code of characters and counts; {text} if equal.
def compress_string(text: str) -> str:
    pieces = []
    count = 0
    for i, char in enumerate(text):
        count += 1
        if i + 1 == len(text) or text[i + 1] != char:
            pieces.append(char + str(count))
            count = 0
    compressed = "".join(pieces)
    return compressed if len(compressed) < len(text) else text


def compress_string(text: str) -> str:
    compressed = ""
    start = 0
    for i in range(1, len(text) + 1):
        if i == len(text) or text[i] != text[start]:
            compressed += text[start] + str(i - start)
            start = i
    if len(compressed) < len(text):
        return compressed
    return text


assert compress_string("aabcccccaaa") == "a2b1c5a3"
assert compress_string("abc") == "abc"
assert compress_string("aabb") == "aabb"
assert compress_string("") == ""


# == caesar_encrypt, caesar_cipher, caesar_encode
# text: message, plaintext, s
# shift: offset, steps, k
# result: encrypted, ciphertext, output
# char: letter, c, ch
# - Encrypt {text} with a Caesar cipher, moving letters {shift} places on.
# - Shift every letter of {text} by {shift} places; leave other characters unchanged.
# - Apply a Caesar cipher to a text, keeping the case of its letters.
# - Return {text} with each letter replaced by the one {shift} places later, around z to a.
# - Encode a message with the Caesar cipher.
# ? Move all letters of {text} by {shift} in the alphabet, wrapping at its end.
# ? Write {text} in the cipher of Caesar with the given shift.
def caesar_encrypt(text: str, shift: int) -> str:
    result = ""
    for char in text:
        if char.isupper():
            result += chr((ord(char) - ord("A") + shift) % 26 + ord("A"))
        elif char.islower():
            result += chr((ord(char) - ord("a") + shift) % 26 + ord("a"))
        else:
            result += char
    return result


def caesar_encrypt(text: str, shift: int) -> str:
    result = []
    for char in text:
        if char.isalpha():
            base = ord("A") if char.isupper() else ord("a")
            result.append(chr((ord(char) - base + shift) % 26 + base))
        else:
            result.append(char)
    return "".join(result)


assert caesar_encrypt("abc", 3) == "def"
assert caesar_encrypt("xyz", 3) == "abc"
assert caesar_encrypt("Hello, World!", 5) == "Mjqqt, Btwqi!"
assert caesar_encrypt("abc", 0) == "abc"
assert caesar_encrypt("bcd", -1) == "abc"


# == caesar_decrypt, caesar_decode, decrypt_caesar
# text: message, ciphertext, s
# shift: offset, steps, k
# result: decrypted, plaintext, output
# char: letter, c, ch
# - Decrypt {text}, which was encrypted with a Caesar cipher and {shift}.
# - Undo a Caesar cipher by moving every letter {shift} places back.
# - Return the plain text of a message that was shifted by {shift} letters.
# - Decode a Caesar cipher; characters other than letters stay as they are.
# - Move each letter of {text} back by {shift} places, keeping its case.
# ? Turn {text} back into what it was before its letters moved on by {shift}.
# ? Read a message in the cipher of Caesar whose letters were shifted by {shift}.
def caesar_decrypt(text: str, shift: int) -> str:
    result = ""
    for char in text:
        if char.isupper():
            result += chr((ord(char) - ord("A") - shift) % 26 + ord("A"))
        elif char.islower():
            result += chr((ord(char) - ord("a") - shift) % 26 + ord("a"))
        else:
            result += char
    return result


def caesar_decrypt(text: str, shift: int) -> str:
    result = []
    for char in text:
        if char.isalpha():
            base = ord("A") if char.isupper() else ord("a")
            result.append(chr((ord(char) - base - shift) % 26 + base))
        else:
            result.append(char)
    return "".join(result)


assert caesar_decrypt("def", 3) == "abc"
assert caesar_decrypt("abc", 3) == "xyz"
assert caesar_decrypt("Mjqqt, Btwqi!", 5) == "Hello, World!"
assert caesar_decrypt("", 7) == ""


# == rot13, rot13_encode, apply_rot13
# text: message, s, value
# result: encoded, output, rotated
# char: letter, c, ch
# - Apply ROT13 to {text}.
# - Move every letter of {text} 13 places on; leave other characters alone.
# - Encode {text} with ROT13, keeping the case of the letters.
# - Return {text} with each letter replaced by the one 13 places later in the alphabet.
# - Encode or decode a message with the ROT13 cipher.
# ? Give {text} with its letters turned by half of the alphabet.
# ? Exchange a and n, b and o and so on in {text}, in both cases.
def rot13(text: str) -> str:
    result = ""
    for char in text:
        if "a" <= char <= "z":
            result += chr((ord(char) - ord("a") + 13) % 26 + ord("a"))
        elif "A" <= char <= "Z":
            result += chr((ord(char) - ord("A") + 13) % 26 + ord("A"))
        else:
            result += char
    return result


def rot13(text: str) -> str:
    lower = string.ascii_lowercase
    upper = string.ascii_uppercase
    rotated_lower = lower[13:] + lower[:13]
    rotated_upper = upper[13:] + upper[:13]
    return text.translate(str.maketrans(lower + upper, rotated_lower + rotated_upper))


assert rot13("Hello, World!") == "Uryyb, Jbeyq!"
assert rot13("abc xyz") == "nop klm"
assert rot13(rot13("Python")) == "Python"
assert rot13("123") == "123"


# == vigenere_encrypt, vigenere_cipher, vigenere_encode
# text: message, plaintext, s
# keyword: password, secret, passphrase
# result: encrypted, ciphertext, output
# char: letter, c, ch
# shift: offset, steps, k
# - Encrypt the lowercase letters of {text} with the Vigenere cipher and {keyword}.
# - Shift each letter of {text} by the matching letter of {keyword}, where a is 0.
# - Apply a Vigenere cipher to a text of lowercase letters with a lowercase {keyword}.
# - Encode lowercase {text}: its letter i moves by letter i of the repeated {keyword}.
# - Encrypt a lowercase message with the Vigenere cipher.
# ? Add the letters of {keyword}, repeated as needed, to those of {text} (a = 0, b = 1).
# ? Write the lowercase word {text} in the cipher of Vigenere under {keyword}.
def vigenere_encrypt(text: str, keyword: str) -> str:
    result = ""
    for i, char in enumerate(text):
        shift = ord(keyword[i % len(keyword)]) - ord("a")
        result += chr((ord(char) - ord("a") + shift) % 26 + ord("a"))
    return result


assert vigenere_encrypt("hello", "abc") == "hfnlp"
assert vigenere_encrypt("xyz", "b") == "yza"
assert vigenere_encrypt("secret", "a") == "secret"
assert vigenere_encrypt("", "abc") == ""


# == atbash, atbash_cipher, atbash_encode
# text: message, s, value
# result: encoded, output, mirrored
# char: letter, c, ch
# - Apply the Atbash cipher to {text}: a becomes z, b becomes y and so on.
# - Replace every letter of {text} by its mirror in the alphabet (a and z, b and y).
# - Encode {text} with the Atbash cipher; keep case and other characters.
# - Mirror the letters of {text} in the alphabet, leaving other characters unchanged.
# - Return the Atbash encoding of a message, keeping the case of letters.
# ? Exchange the first letter of the alphabet with the last in {text}, and so on inwards.
# ? Count each letter of {text} from the other end of the alphabet instead (c gives x).
def atbash(text: str) -> str:
    result = ""
    for char in text:
        if "a" <= char <= "z":
            result += chr(ord("a") + ord("z") - ord(char))
        elif "A" <= char <= "Z":
            result += chr(ord("A") + ord("Z") - ord(char))
        else:
            result += char
    return result


def atbash(text: str) -> str:
    lower = string.ascii_lowercase
    upper = string.ascii_uppercase
    return text.translate(str.maketrans(lower + upper, lower[::-1] + upper[::-1]))


assert atbash("abc xyz") == "zyx cba"
assert atbash("Hello!") == "Svool!"
assert atbash("") == ""


# == camel_to_snake, camel_case_to_snake_case, to_snake_case
# name: text, s, identifier
# result: output, snake, converted
# char: c, ch, letter
# - Convert {name} from camel case to snake case.
# - Turn a name such as "camelCaseName" into "camel_case_name".
# - Convert camelCase to snake_case.
# - Return the camel-case {name} in lower case with underscores between its words.
# - Rewrite a camel-case identifier in snake case.
# ? Put an underscore before each inner capital of {name} and make all lower case.
# ? Write the camel-case {name} the way Python variables are named: my_value for myValue.
def camel_to_snake(name: str) -> str:
    result = ""
    for i, char in enumerate(name):
        if char.isupper() and i > 0:
            result += "_"
        result += char.lower()
    return result


def camel_to_snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


assert camel_to_snake("camelCase") == "camel_case"
assert camel_to_snake("MyClassName") == "my_class_name"
assert camel_to_snake("simple") == "simple"
assert camel_to_snake("") == ""


# == snake_to_camel, snake_case_to_camel_case, to_camel_case
# name: text, s, identifier
# parts: words, pieces, tokens
# part: word, piece, token
# - Convert {name} from snake case to camel case.
# - Turn a name such as "snake_case_name" into "snakeCaseName".
# - Convert snake_case to camelCase, with a lowercase first letter.
# - Remove the underscores of {name} and capitalize each word but the first.
# - Rewrite a snake-case identifier in camel case, beginning in lower case.
# ? Write the snake-case {name} the way JavaScript names variables: myValue for my_value.
# ? Join the words between underscores, all but the first with a capital letter.
def snake_to_camel(name: str) -> str:
    parts = name.split("_")
    return parts[0] + "".join(part.capitalize() for part in parts[1:])


def snake_to_camel(name: str) -> str:
    result = ""
    for i, part in enumerate(name.split("_")):
        if i == 0:
            result += part
        else:
            result += part.capitalize()
    return result


assert snake_to_camel("snake_case") == "snakeCase"
assert snake_to_camel("my_variable_name") == "myVariableName"
assert snake_to_camel("simple") == "simple"
assert snake_to_camel("") == ""


# == snake_to_pascal, snake_case_to_pascal_case, to_pascal_case
# name: text, s, identifier
# part: word, piece, token
# - Convert {name} from snake case to Pascal case.
# - Turn a name such as "my_class_name" into "MyClassName".
# - Convert snake_case to PascalCase, with a capital first letter.
# - Remove the underscores of {name} and capitalize every word, also the first.
# - Make a class name such as "HttpServer" from a name such as "http_server".
# ? Write the snake-case {name} the way Python names classes: MyValue for my_value.
# ? Join the words between underscores, each of them with a capital letter.
def snake_to_pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


assert snake_to_pascal("my_class_name") == "MyClassName"
assert snake_to_pascal("simple") == "Simple"
assert snake_to_pascal("") == ""


# == slugify, make_slug, to_slug
# text: title, s, name
# slug: result, cleaned, output
# - Turn {text} into a slug: lowercase letters and digits, joined by hyphens.
# - Convert {text} to a URL slug such as "hello-world" for "Hello, World!".
# - Make a slug: lower case, with a hyphen for each run of other characters.
# - Return {text} in lower case with single hyphens instead of spaces and punctuation.
# - Create a URL-friendly slug from a title, without hyphens at the ends.
# ? Write the title "My first Post" as "my-first-post", and any other one alike.
# ? Join the lowercased words and numbers of {text} by single hyphens, for use in a URL.
def slugify(text: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower())
    return slug.strip("-")


def slugify(text: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


assert slugify("Hello, World!") == "hello-world"
assert slugify("  Python 3 is  great ") == "python-3-is-great"
assert slugify("simple") == "simple"
assert slugify("") == ""


# == truncate, truncate_text, shorten
# text: s, string, message
# max_length: limit, length, width
# - Cut {text} to at most {max_length} characters, ending in "..." if it was cut.
# - Truncate {text} to {max_length} characters, of which the last three are then dots.
# - Shorten {text} to {max_length} characters including "..."; keep it if it fits.
# - Return {text}, or its beginning and "..." in {max_length} characters if it is longer.
# - Truncate a string with an ellipsis that counts towards {max_length}.
# ? If {text} is too long for {max_length} characters, let "..." replace what is too much.
# ? Give at most {max_length} characters: {text}, or its start with three dots behind it.
def truncate(text: str, max_length: int) -> str:
    if len(text) <= max_length:
        return text
    return text[: max_length - 3] + "..."


assert truncate("hello world", 8) == "hello..."
assert truncate("hello", 5) == "hello"
assert truncate("hello", 10) == "hello"
assert truncate("", 5) == ""


# == pad_left, left_pad, pad_start
# text: s, string, value
# width: length, size, n
# fill: char, padding, filler
# - Fill up {text} with {fill} on the left until it has {width} characters.
# - Pad {text} on the left with {fill} to a length of {width}.
# - Return {text} right-aligned in {width} characters, with {fill} in front of it.
# - Put the character {fill} before {text} as often as needed for {width} characters.
# - Pad a string at its start; a string that is long enough stays as it is.
# ? Make {text} {width} characters long by writing {fill} to its left.
# ? Add {fill} at the front of {text} up to the length {width}.
def pad_left(text: str, width: int, fill: str) -> str:
    return text.rjust(width, fill)


def pad_left(text: str, width: int, fill: str) -> str:
    while len(text) < width:
        text = fill + text
    return text


def pad_left(text: str, width: int, fill: str) -> str:
    return fill * (width - len(text)) + text


assert pad_left("42", 5, "0") == "00042"
assert pad_left("abc", 3, "*") == "abc"
assert pad_left("long text", 4, " ") == "long text"
assert pad_left("", 2, "-") == "--"


# == pad_right, right_pad, pad_end
# text: s, string, value
# width: length, size, n
# fill: char, padding, filler
# - Fill up {text} with {fill} on the right until it has {width} characters.
# - Pad {text} on the right with {fill} to a length of {width}.
# - Return {text} left-aligned in {width} characters, followed by {fill}.
# - Append the character {fill} to {text} as often as needed for {width} characters.
# - Pad a string at its end; a string that is long enough stays as it is.
# ? Make {text} {width} characters long by writing {fill} behind it.
# ? Add {fill} at the back of {text} up to the length {width}.
def pad_right(text: str, width: int, fill: str) -> str:
    return text.ljust(width, fill)


def pad_right(text: str, width: int, fill: str) -> str:
    while len(text) < width:
        text += fill
    return text


assert pad_right("42", 5, ".") == "42..."
assert pad_right("abc", 3, "*") == "abc"
assert pad_right("long text", 4, " ") == "long text"
assert pad_right("", 2, "-") == "--"


# == center_text, center_string, centered
# text: s, string, title
# width: length, size, columns
# - Center {text} in {width} characters by spaces on both sides.
# - Return {text} with equally many spaces left and right, {width} characters in all.
# - Put spaces around {text} so that it stands in the middle of {width} characters.
# - Return a string of length {width} with {text} in its middle.
# - Center a string in a line of the given width.
# ? Let {text} stand in the middle of a line of {width} columns, blanks on both sides.
# ? Fill {text} with blanks in front and behind alike until it is {width} long.
def center_text(text: str, width: int) -> str:
    return text.center(width)


assert center_text("ab", 6) == "  ab  "
assert center_text("abc", 5) == " abc "
assert center_text("hello", 3) == "hello"
assert center_text("", 2) == "  "


# == repeat_string, repeat_text, string_times
# text: s, string, word
# times: n, count, k
# result: output, repeated, copies
# - Return {text} repeated {times} times.
# - Repeat {text} {times} times.
# - Join {times} copies of {text} into one string.
# - Return a string that consists of {times} copies of {text}.
# - Repeat a string the given number of times.
# ? Write {text} {times} times in a row, with nothing in between.
# ? Give one string in which {text} stands {times} times.
def repeat_string(text: str, times: int) -> str:
    return text * times


def repeat_string(text: str, times: int) -> str:
    result = ""
    for _ in range(times):
        result += text
    return result


assert repeat_string("ab", 3) == "ababab"
assert repeat_string("x", 1) == "x"
assert repeat_string("abc", 0) == ""
assert repeat_string("", 5) == ""


# == longest_common_prefix, common_prefix, shared_prefix
# words: strings, strs, texts
# prefix: start, common, result
# word: text, s, other
# - Return the longest common prefix of {words}.
# - Find the longest string with which all of {words} begin.
# - Return the longest prefix shared by all strings of a list, or "" if there is none.
# - Find the common beginning of all {words}; it may be empty.
# - Return the longest common prefix of a list of strings.
# ? Give as many first letters as all of {words} have in common.
# ? What do all of {words} start with? Return the longest such text, maybe empty.
def longest_common_prefix(words: list[str]) -> str:
    if not words:
        return ""
    prefix = words[0]
    for word in words[1:]:
        while not word.startswith(prefix):
            prefix = prefix[:-1]
    return prefix


def longest_common_prefix(words: list[str]) -> str:
    prefix = ""
    for letters in zip(*words):
        if len(set(letters)) > 1:
            break
        prefix += letters[0]
    return prefix


def longest_common_prefix(words: list[str]) -> str:
    if not words:
        return ""
    for i, char in enumerate(words[0]):
        for word in words[1:]:
            if i == len(word) or word[i] != char:
                return words[0][:i]
    return words[0]


assert longest_common_prefix(["flower", "flow", "flight"]) == "fl"
assert longest_common_prefix(["dog", "car"]) == ""
assert longest_common_prefix(["same", "same"]) == "same"
assert longest_common_prefix(["one"]) == "one"
assert longest_common_prefix([]) == ""


# == longest_unique_substring, length_of_longest_substring, longest_substring_length
# text: s, string, word
# start: left, begin, low
# longest: best, max_length, result
# seen: last_seen, window, positions
# - Return the length of the longest substring of {text} without repeated characters.
# - Find how long the longest part of {text} is in which no character occurs twice.
# - Return the length of the longest substring with all different characters.
# - Compute the size of the longest stretch of {text} with no repeating characters.
# - Return how many characters the longest substring without repeats has.
# ? How many neighbouring characters of {text} can at most be all different?
# ? Give the length of the longest run inside {text} where each character is new.
def longest_unique_substring(text: str) -> int:
    seen = {}
    start = 0
    longest = 0
    for i, char in enumerate(text):
        if char in seen and seen[char] >= start:
            start = seen[char] + 1
        seen[char] = i
        longest = max(longest, i - start + 1)
    return longest


def longest_unique_substring(text: str) -> int:
    seen = set()
    start = 0
    longest = 0
    for i, char in enumerate(text):
        while char in seen:
            seen.remove(text[start])
            start += 1
        seen.add(char)
        longest = max(longest, i - start + 1)
    return longest


assert longest_unique_substring("abcabcbb") == 3
assert longest_unique_substring("bbbb") == 1
assert longest_unique_substring("pwwkew") == 3
assert longest_unique_substring("abba") == 2
assert longest_unique_substring("") == 0


# == longest_palindrome, longest_palindromic_substring, find_longest_palindrome
# text: s, string, word
# longest: best, result, palindrome
# - Return the longest substring of {text} that is a palindrome.
# - Find the longest palindromic substring of {text}.
# - Return the longest palindrome inside {text}; of several, the first.
# - Find the longest part of {text} which reads the same backwards.
# - Return the longest palindromic substring, the leftmost if there are several.
# ? Give the largest piece of {text} that equals its own reverse (the leftmost of equals).
# ? Which stretch of {text} is the longest palindrome?
def longest_palindrome(text: str) -> str:
    longest = ""
    for center in range(len(text)):
        for left, right in ((center, center), (center, center + 1)):
            while left >= 0 and right < len(text) and text[left] == text[right]:
                left -= 1
                right += 1
            if right - left - 1 > len(longest):
                longest = text[left + 1 : right]
    return longest


def longest_palindrome(text: str) -> str:
    longest = ""
    for i in range(len(text)):
        for j in range(i + 1, len(text) + 1):
            part = text[i:j]
            if len(part) > len(longest) and part == part[::-1]:
                longest = part
    return longest


assert longest_palindrome("babad") == "bab"
assert longest_palindrome("cbbd") == "bb"
assert longest_palindrome("racecar") == "racecar"
assert longest_palindrome("a") == "a"
assert longest_palindrome("") == ""


# == is_subsequence, is_subsequence_of
# part: s, short, first
# text: t, long, second
# position: index, i, matched
# char: c, ch, letter
# - Return True if {part} is a subsequence of {text}.
# - Check whether the characters of {part} occur in {text} in the same order.
# - Return whether {part} can be made from {text} by deleting characters.
# - Check if all characters of {part} appear in {text} in order, gaps allowed.
# - Determine if the first string is a subsequence of the second.
# ? Say whether crossing out characters of {text} can leave {part}.
# ? Can the letters of {part} be found in {text} one after the other, from left to right?
def is_subsequence(part: str, text: str) -> bool:
    position = 0
    for char in text:
        if position < len(part) and char == part[position]:
            position += 1
    return position == len(part)


def is_subsequence(part: str, text: str) -> bool:
    remaining = iter(text)
    return all(char in remaining for char in part)


assert is_subsequence("ace", "abcde")
assert not is_subsequence("aec", "abcde")
assert is_subsequence("", "abc")
assert not is_subsequence("abc", "ab")


# == count_substring, count_overlapping, count_overlapping_substrings
# text: s, string, sentence
# part: sub, substring, pattern
# count: total, counter, result
# i: start, index, pos
# - Count how often {part} occurs in {text}; occurrences may overlap.
# - Return the number of occurrences of {part} in {text}, overlapping ones included.
# - Count all positions of {text} at which {part} begins.
# - Return how many times {part} appears in {text}, counting overlaps.
# - Count a substring in a string, with overlapping occurrences.
# ? At how many places of {text} does {part} start, even if two of them overlap?
# ? Give the number of places where {part} can be read in {text}.
def count_substring(text: str, part: str) -> int:
    count = 0
    for i in range(len(text) - len(part) + 1):
        if text[i : i + len(part)] == part:
            count += 1
    return count


def count_substring(text: str, part: str) -> int:
    return sum(text.startswith(part, i) for i in range(len(text) - len(part) + 1))


assert count_substring("aaaa", "aa") == 3
assert count_substring("banana", "ana") == 2
assert count_substring("hello", "x") == 0
assert count_substring("a", "abc") == 0


# == find_all_positions, find_all, substring_positions
# text: s, string, sentence
# part: sub, substring, pattern
# positions: indices, indexes, result
# i: start, index, pos
# - Return a list of all indices of {text} at which {part} begins.
# - Find all positions where {part} occurs in {text}, overlapping ones too.
# - Return the start of every occurrence of {part} in {text}, in ascending order.
# - List every index at which {part} can be found in {text}.
# - Find every occurrence of a substring and return the indices in a list.
# ? Where in {text} does {part} start? Give all the indices, smallest first.
# ? Collect the index of each place of {text} at which {part} stands.
def find_all_positions(text: str, part: str) -> list[int]:
    positions = []
    for i in range(len(text) - len(part) + 1):
        if text[i : i + len(part)] == part:
            positions.append(i)
    return positions


def find_all_positions(text: str, part: str) -> list[int]:
    positions = []
    i = text.find(part)
    while i != -1:
        positions.append(i)
        i = text.find(part, i + 1)
    return positions


assert find_all_positions("banana", "an") == [1, 3]
assert find_all_positions("aaa", "aa") == [0, 1]
assert find_all_positions("hello", "x") == []
assert find_all_positions("", "a") == []


# == swap_case, swapcase, invert_case
# text: s, string, word
# result: output, swapped, converted
# char: c, ch, letter
# - Return {text} with upper case made lower case and the other way round.
# - Swap the case of every letter in {text}.
# - Turn capitals of {text} into small letters and small letters into capitals.
# - Invert the case of all letters of a string.
# - Return a copy of the string with the case of its letters swapped.
# ? Write the small letters of {text} big and its big letters small.
# ? Change each letter of {text} to the opposite case.
def swap_case(text: str) -> str:
    return text.swapcase()


def swap_case(text: str) -> str:
    result = ""
    for char in text:
        if char.isupper():
            result += char.lower()
        else:
            result += char.upper()
    return result


assert swap_case("Hello World") == "hELLO wORLD"
assert swap_case("abc") == "ABC"
assert swap_case("123!") == "123!"
assert swap_case("") == ""


# == alternate_case, alternating_case, mocking_case
# text: s, string, word
# result: output, letters, chars
# i: index, pos, at
# char: c, ch, letter
# - Make the characters at even indices of {text} upper case, the others lower case.
# - Return {text} in alternating case, beginning with an upper-case letter.
# - Alternate upper and lower case by position, starting with upper case.
# - Write every second character of {text} in lower case and the first in upper case.
# - Return the string with its case alternating from character to character, upper first.
# ? Turn "python" into "PyThOn", and any other string alike.
# ? Let capitals stand at positions 0, 2, 4 and so on of {text}, small letters between.
def alternate_case(text: str) -> str:
    result = ""
    for i, char in enumerate(text):
        if i % 2 == 0:
            result += char.upper()
        else:
            result += char.lower()
    return result


def alternate_case(text: str) -> str:
    return "".join(char.upper() if i % 2 == 0 else char.lower() for i, char in enumerate(text))


assert alternate_case("python") == "PyThOn"
assert alternate_case("ABC") == "AbC"
assert alternate_case("x") == "X"
assert alternate_case("") == ""


# == is_numeric, is_number, is_number_string
# text: s, string, value
# - Return True if {text} can be read as a number, such as "42" or "-3.5".
# - Check whether {text} can be converted to a float.
# - Return whether the string {text} is a number, with or without decimals.
# - Check if a string represents an integer or a decimal number.
# - Test if float can parse {text}.
# ? Say whether {text} is the text of a number like 7 or -0.25.
# ? Could {text} be turned into a number?
def is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_numeric(text: str) -> bool:
    try:
        float(text)
        return True
    except ValueError:
        return False


assert is_numeric("42")
assert is_numeric("-3.5")
assert not is_numeric("abc")
assert not is_numeric("1.2.3")
assert not is_numeric("")


# == has_only_digits, only_digits, is_all_digits
# text: s, string, value
# char: c, ch, symbol
# - Return True if {text} is not empty and all its characters are digits.
# - Check whether {text} consists of digits only; the empty string does not.
# - Return whether every character of the non-empty {text} is a digit from 0 to 9.
# - Check if a string contains nothing but digits (False if it is empty).
# - Test if {text} is made of one or more digits and nothing else.
# ? Say whether {text} has at least one digit and no other characters.
# ? Is {text} written with digits alone? An empty one is not.
def has_only_digits(text: str) -> bool:
    return text.isdigit()


def has_only_digits(text: str) -> bool:
    return re.fullmatch(r"[0-9]+", text) is not None


def has_only_digits(text: str) -> bool:
    if not text:
        return False
    for char in text:
        if char not in "0123456789":
            return False
    return True


assert has_only_digits("2024")
assert not has_only_digits("20.5")
assert not has_only_digits("-3")
assert not has_only_digits("")


# == hex_to_rgb, parse_hex_color, hex_color_to_rgb
# color: hex_color, code, value
# digits: text, code_digits, pairs
# - Convert a color such as "#ff8000" to a tuple (red, green, blue).
# - Return the red, green and blue values (0 to 255) of the hex {color}.
# - Convert the hexadecimal {color} "#rrggbb" to an RGB tuple.
# - Parse a hex color, with or without the leading "#", into three integers.
# - Return an RGB tuple for a hex color string.
# ? Give the three numbers from 0 to 255 that {color}, written like "#1e90ff", stands for.
# ? Split the color code {color} into its parts red, green and blue, as integers.
def hex_to_rgb(color: str) -> tuple[int, int, int]:
    digits = color.lstrip("#")
    return int(digits[0:2], 16), int(digits[2:4], 16), int(digits[4:6], 16)


def hex_to_rgb(color: str) -> tuple[int, int, int]:
    digits = color.removeprefix("#")
    return tuple(int(digits[i : i + 2], 16) for i in (0, 2, 4))


assert hex_to_rgb("#ff8000") == (255, 128, 0)
assert hex_to_rgb("#000000") == (0, 0, 0)
assert hex_to_rgb("#FFFFFF") == (255, 255, 255)


# == rgb_to_hex, rgb_to_hex_color, format_hex_color
# red: r, r_value
# green: g, g_value
# blue: b, b_value
# - Return the color {red}, {green}, {blue} as a lowercase hex string like "#ff8000".
# - Convert RGB values from 0 to 255 to a hex color such as "#00ff7f".
# - Format three color values as "#rrggbb" in lowercase hexadecimal.
# - Return the hex code of a color, beginning with "#", in lower case.
# - Convert red, green and blue to a six-digit lowercase hex color with a leading "#".
# ? Write a color given by three numbers from 0 to 255 as in HTML, say "#1e90ff".
# ? Give the "#rrggbb" code for {red}, {green} and {blue}, its letters in lower case.
def rgb_to_hex(red: int, green: int, blue: int) -> str:
    return f"#{red:02x}{green:02x}{blue:02x}"


def rgb_to_hex(red: int, green: int, blue: int) -> str:
    result = "#"
    for value in (red, green, blue):
        result += format(value, "02x")
    return result


assert rgb_to_hex(255, 128, 0) == "#ff8000"
assert rgb_to_hex(0, 0, 0) == "#000000"
assert rgb_to_hex(255, 255, 255) == "#ffffff"
assert rgb_to_hex(1, 2, 3) == "#010203"


# == is_balanced, valid_parentheses, balanced_brackets
# text: s, expression, brackets
# stack: opened, pending, open_brackets
# char: c, ch, symbol
# pairs: matching, closing, partners
# - Return True if the brackets in {text} are balanced.
# - Check whether every (, [ or { in {text} is closed in the right order.
# - Check if parentheses, square brackets and braces match each other.
# - Return whether each bracket of {text} has a matching partner.
# - Determine if a string of brackets is valid.
# ? Say whether all brackets of {text}, round, square or curly, close as they should.
# ? Is each opening bracket of {text} closed by its own kind, inner ones first?
def is_balanced(text: str) -> bool:
    pairs = {")": "(", "]": "[", "}": "{"}
    stack = []
    for char in text:
        if char in "([{":
            stack.append(char)
        elif char in pairs:
            if not stack or stack.pop() != pairs[char]:
                return False
    return not stack


def is_balanced(text: str) -> bool:
    pairs = {"(": ")", "[": "]", "{": "}"}
    stack = []
    for char in text:
        if char in pairs:
            stack.append(pairs[char])
        elif char in ")]}" and (not stack or stack.pop() != char):
            return False
    return len(stack) == 0


assert is_balanced("([]{})")
assert is_balanced("f(a[0]) + {b}")
assert not is_balanced("(]")
assert not is_balanced("(()")
assert not is_balanced(")(")
assert is_balanced("")


# ==! reverse_vowels, reverse_only_vowels
# text: s, string, word
# vowels: found, letters, stack
# chars: result, symbols, output
# - Reverse only the vowels of {text}; all other characters stay in place.
# - Return {text} with the order of its vowels reversed.
# - Reverse the vowels in a string and leave the other characters where they are.
# - Return the string in which the vowels appear in reverse order, the rest unchanged.
# - Exchange the first vowel of {text} with the last, the second with the last but one.
# ? Let the vowels of {text} change places, last one first, and nothing else.
# ? Turn the sequence of vowels in {text} around without moving the consonants.
def reverse_vowels(text: str) -> str:
    vowels = [char for char in text if char in "aeiouAEIOU"]
    chars = []
    for char in text:
        if char in "aeiouAEIOU":
            chars.append(vowels.pop())
        else:
            chars.append(char)
    return "".join(chars)


def reverse_vowels(text: str) -> str:
    chars = list(text)
    left, right = 0, len(chars) - 1
    while left < right:
        if chars[left] not in "aeiouAEIOU":
            left += 1
        elif chars[right] not in "aeiouAEIOU":
            right -= 1
        else:
            chars[left], chars[right] = chars[right], chars[left]
            left += 1
            right -= 1
    return "".join(chars)


assert reverse_vowels("hello") == "holle"
assert reverse_vowels("programming") == "prigrammong"
assert reverse_vowels("xyz") == "xyz"
assert reverse_vowels("") == ""


# == text_to_morse, to_morse, morse_encode
# text: message, s, word
# letter: char, c, ch
# - Translate {text} to Morse code, with a space between the letters.
# - Return the Morse code of the letters in {text}, separated by spaces.
# - Encode a word in Morse code with dots and dashes.
# - Convert each letter of {text} to Morse code and join the codes by spaces.
# - Write a word in Morse code; upper and lower case are the same.
# ? Give the dots and dashes for the letters of {text}, blanks between the letters.
# ? Spell {text} as a telegraph does, with "." and "-", and a space between two letters.
MORSE_CODES = {
    "a": ".-", "b": "-...", "c": "-.-.", "d": "-..", "e": ".", "f": "..-.", "g": "--.",
    "h": "....", "i": "..", "j": ".---", "k": "-.-", "l": ".-..", "m": "--", "n": "-.",
    "o": "---", "p": ".--.", "q": "--.-", "r": ".-.", "s": "...", "t": "-", "u": "..-",
    "v": "...-", "w": ".--", "x": "-..-", "y": "-.--", "z": "--..",
}  # fmt: skip


def text_to_morse(text: str) -> str:
    return " ".join(MORSE_CODES[letter] for letter in text.lower())


assert text_to_morse("sos") == "... --- ..."
assert text_to_morse("Hi") == ".... .."
assert text_to_morse("") == ""


# == pig_latin, to_pig_latin, word_to_pig_latin
# word: text, s, token
# i: index, pos, at
# char: letter, c, ch
# - Translate a word to Pig Latin: "pig" gives "igpay", "apple" gives "appleway".
# - Move the consonants before the first vowel to the end and add "ay"; else add "way".
# - Return the lowercase {word} in Pig Latin, as in "oolschay" and "eggway".
# - Convert {word} to Pig Latin; a word that begins with a vowel just gets "way".
# - Turn a word into Pig Latin, so that "string" becomes "ingstray" and "is" "isway".
# ? Put leading consonants behind the rest with "ay"; if a vowel leads, append "way".
# ? Say {word} in Pig Latin ("trash" is "ashtray", "oak" is "oakway").
def pig_latin(word: str) -> str:
    if word[0] in "aeiou":
        return word + "way"
    for i, char in enumerate(word):
        if char in "aeiou":
            return word[i:] + word[:i] + "ay"
    return word + "ay"


def pig_latin(word: str) -> str:
    i = 0
    while i < len(word) and word[i] not in "aeiou":
        i += 1
    if i == 0:
        return word + "way"
    return word[i:] + word[:i] + "ay"


assert pig_latin("pig") == "igpay"
assert pig_latin("string") == "ingstray"
assert pig_latin("apple") == "appleway"


# == is_valid_email, valid_email, is_email
# email: address, text, s
# pattern: regex, expression, rule
# - Return True if {email} looks like an e-mail address.
# - Check whether {email} has the form name@domain.tld.
# - Validate a simple e-mail address with a regular expression.
# - Return whether {email} is a valid e-mail address.
# - Check if a string is an email address such as "ann@mail.com".
# ? Say whether {email} could be the address of a mailbox, like "bob@site.org".
# ? Does {email} consist of a name, an at sign, and a domain with a dot?
def is_valid_email(email: str) -> bool:
    pattern = r"[\w.+-]+@[\w-]+(\.[\w-]+)+"
    return re.fullmatch(pattern, email) is not None


def is_valid_email(email: str) -> bool:
    pattern = re.compile(r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$")
    return bool(pattern.match(email))


assert is_valid_email("ann@example.com")
assert is_valid_email("first.last@mail.co.uk")
assert not is_valid_email("no-at-sign.com")
assert not is_valid_email("name@nodot")
assert not is_valid_email("two@@example.com")


# == is_valid_ipv4, valid_ipv4, is_ipv4_address
# address: ip, text, s
# parts: numbers, octets, fields
# part: number, octet, field
# - Return True if {address} is a valid IPv4 address.
# - Check whether {address} consists of four numbers from 0 to 255 with dots between.
# - Validate an IPv4 address such as "192.168.0.1".
# - Return whether the string is an IPv4 address in dotted notation.
# - Check if {address} is four numbers of at most 255, joined by dots.
# ? Say whether {address} is written like "10.0.0.1", no number being above 255.
# ? Could {address} be the IPv4 address of a computer?
def is_valid_ipv4(address: str) -> bool:
    parts = address.split(".")
    if len(parts) != 4:
        return False
    for part in parts:
        if not part.isdigit() or int(part) > 255:
            return False
    return True


def is_valid_ipv4(address: str) -> bool:
    parts = address.split(".")
    return len(parts) == 4 and all(part.isdigit() and int(part) <= 255 for part in parts)


assert is_valid_ipv4("192.168.0.1")
assert is_valid_ipv4("0.0.0.0")
assert not is_valid_ipv4("256.1.1.1")
assert not is_valid_ipv4("1.2.3")
assert not is_valid_ipv4("a.b.c.d")


# == is_hex_color, is_valid_hex_color, valid_hex_color
# text: color, s, code
# char: digit, c, ch
# - Return True if {text} is a color such as "#1e90ff": "#" and six hex digits.
# - Check whether {text} is a "#" followed by exactly six hexadecimal digits.
# - Validate a hex color of the form "#rrggbb", in upper or lower case.
# - Return whether {text} is a six-digit hex color code with a leading "#".
# - Check if a string is a hex color like "#FFAA00".
# ? Say whether {text} is a color as in HTML, written "#" and six digits from 0 to f.
# ? Does {text} have seven characters, first "#" and then only hex digits?
def is_hex_color(text: str) -> bool:
    return re.fullmatch(r"#[0-9a-fA-F]{6}", text) is not None


def is_hex_color(text: str) -> bool:
    if len(text) != 7 or text[0] != "#":
        return False
    return all(char in "0123456789abcdef" for char in text[1:].lower())


assert is_hex_color("#1e90ff")
assert is_hex_color("#FFAA00")
assert not is_hex_color("1e90ff")
assert not is_hex_color("#12345g")
assert not is_hex_color("")


# == is_strong_password, strong_password, check_password
# password: text, s, candidate
# char: c, ch, symbol
# - Check that {password} has 8 or more characters, with upper and lower case and a digit.
# - Return True if {password} is 8 long or more and mixes capitals, small letters, digits.
# - Return whether a password has at least 8 characters, an upper, a lower and a digit.
# - A password is strong with 8 characters or more, both cases of letters and a digit.
# - Check for 8 or more characters, a capital, a small letter and a digit among them.
# ? Is {password} at least 8 long, and is there a digit, a big and a small letter in it?
# ? Say if a password is good: not under 8 characters, letters of both cases, some digit.
def is_strong_password(password: str) -> bool:
    if len(password) < 8:
        return False
    has_upper = any(char.isupper() for char in password)
    has_lower = any(char.islower() for char in password)
    has_digit = any(char.isdigit() for char in password)
    return has_upper and has_lower and has_digit


def is_strong_password(password: str) -> bool:
    if len(password) < 8:
        return False
    if not re.search(r"[A-Z]", password):
        return False
    if not re.search(r"[a-z]", password):
        return False
    return re.search(r"[0-9]", password) is not None


assert is_strong_password("Passw0rdX")
assert not is_strong_password("Ab1")
assert not is_strong_password("alllowercase1")
assert not is_strong_password("NoDigitsHere")


# == is_rotation, is_string_rotation, are_rotations
# first: a, s, original
# second: b, t, rotated
# - Return True if {second} is a rotation of {first}.
# - Check whether {first} can be turned into {second} by rotating its characters.
# - Check if one string is a rotation of another, as "cdab" is of "abcd".
# - Return whether moving some start of {first} to its end gives {second}.
# - Determine if two strings are rotations of each other.
# ? Say whether {second} arises when a beginning of {first} is moved behind the rest.
# ? Are {first} and {second} the same when written in a circle?
def is_rotation(first: str, second: str) -> bool:
    return len(first) == len(second) and second in first + first


def is_rotation(first: str, second: str) -> bool:
    if len(first) != len(second):
        return False
    for i in range(len(first) + 1):
        if first[i:] + first[:i] == second:
            return True
    return False


assert is_rotation("abcd", "cdab")
assert is_rotation("same", "same")
assert not is_rotation("abcd", "acbd")
assert not is_rotation("abc", "ab")
assert is_rotation("", "")


# == count_differences, string_hamming_distance, differing_characters
# first: a, s, left
# second: b, t, right
# count: total, distance, result
# - Return the number of positions at which {first} and {second} differ.
# - Compute the Hamming distance of two strings of equal length.
# - Count the positions where two equally long strings have different characters.
# - Count how many characters of {first} differ from those of {second} in the same place.
# - Return how many positions of two strings of the same length do not match.
# ? At how many places do {first} and {second}, which are equally long, not agree?
# ? Give the Hamming distance between {first} and {second}.
def count_differences(first: str, second: str) -> int:
    return sum(x != y for x, y in zip(first, second))


def count_differences(first: str, second: str) -> int:
    count = 0
    for i in range(len(first)):
        if first[i] != second[i]:
            count += 1
    return count


assert count_differences("karolin", "kathrin") == 3
assert count_differences("abc", "abc") == 0
assert count_differences("a", "b") == 1
assert count_differences("", "") == 0


# == mask_string, mask_number, hide_all_but_last_four
# text: number, s, card
# - Replace all but the last four characters of {text} by asterisks.
# - Mask {text} with "*" except for its last four characters.
# - Hide a number such as a card number, leaving only the last four digits visible.
# - Return {text} with each character but the final four turned into "*".
# - Mask everything in {text} but the last 4 characters.
# ? Show just the four last characters of {text} and stars for the others.
# ? Write "*" in place of every character of {text} before the last four.
def mask_string(text: str) -> str:
    return "*" * (len(text) - 4) + text[-4:]


def mask_string(text: str) -> str:
    result = ""
    for i, char in enumerate(text):
        result += char if i >= len(text) - 4 else "*"
    return result


assert mask_string("1234567890") == "******7890"
assert mask_string("12345") == "*2345"
assert mask_string("123") == "123"
assert mask_string("") == ""


# == split_into_pieces, chunk_string, split_every
# text: s, string, value
# size: n, length, width
# i: start, index, pos
# pieces: parts, chunks, result
# - Split {text} into a list of pieces of {size} characters; the last may be shorter.
# - Cut {text} into strings of length {size}, with a shorter one at the end if needed.
# - Return the consecutive parts of {text} that have {size} characters each.
# - Break a string into chunks of {size} characters.
# - Return a list of slices of {text}, each {size} characters long but maybe the last.
# ? Cut {text} after every {size} characters and list the parts, a short rest included.
# ? Divide a string from its start into strings of {size} characters.
def split_into_pieces(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def split_into_pieces(text: str, size: int) -> list[str]:
    pieces = []
    while text:
        pieces.append(text[:size])
        text = text[size:]
    return pieces


assert split_into_pieces("abcdefg", 3) == ["abc", "def", "g"]
assert split_into_pieces("abcd", 2) == ["ab", "cd"]
assert split_into_pieces("ab", 5) == ["ab"]
assert split_into_pieces("", 2) == []


# == all_substrings, substrings, list_substrings
# text: s, string, word
# result: parts, found, output
# - Return all non-empty substrings of {text}, by start and then by length.
# - List every substring of {text} from left to right, the shorter before the longer.
# - Return each non-empty slice of {text}: "ab" gives ["a", "ab", "b"].
# - Generate all substrings of a string, ordered by start and then by stop.
# - Return a list of all contiguous parts of {text}, as in ["x", "xy", "y"] for "xy".
# ? Which substrings does {text} have? Order them by where they begin, then by length.
# ? Give all parts of neighbouring characters, those from the first character on first.
def all_substrings(text: str) -> list[str]:
    result = []
    for i in range(len(text)):
        for j in range(i + 1, len(text) + 1):
            result.append(text[i:j])
    return result


def all_substrings(text: str) -> list[str]:
    return [text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)]


assert all_substrings("abc") == ["a", "ab", "abc", "b", "bc", "c"]
assert all_substrings("x") == ["x"]
assert all_substrings("") == []


# == sum_digits_in_string, sum_of_digits_in_text, add_digits_in_string
# text: s, string, value
# char: c, ch, symbol
# total: result, digit_sum, count
# - Return the sum of all single digits that occur in the string {text}.
# - Add up the digits of {text}, ignoring all other characters.
# - Sum the digit characters of a string, so that "a1b23" gives 6.
# - Return the sum of the digits found among the characters of {text}.
# - Add the values of all digits in a mixed string; 0 if it has none.
# ? Take each digit inside {text} for itself and add them all ("x12" gives 3).
# ? What is the total of the digits scattered in {text}?
def sum_digits_in_string(text: str) -> int:
    total = 0
    for char in text:
        if char.isdigit():
            total += int(char)
    return total


def sum_digits_in_string(text: str) -> int:
    return sum(int(char) for char in text if char.isdigit())


assert sum_digits_in_string("a1b23") == 6
assert sum_digits_in_string("2024") == 8
assert sum_digits_in_string("none") == 0
assert sum_digits_in_string("") == 0


# == char_codes, string_to_codes, ascii_codes
# text: s, string, word
# char: c, ch, letter
# codes: result, numbers, values
# - Return the code numbers of the characters in {text} as a list.
# - Convert each character of {text} to its ASCII code.
# - Return a list with the ordinal of every character of {text}.
# - List the character codes of a string, such as 97 for "a".
# - Return the Unicode code points of all characters.
# ? Give for each character of {text} the number by which computers know it.
# ? Turn {text} into a list of integers, one character code each.
def char_codes(text: str) -> list[int]:
    return [ord(char) for char in text]


def char_codes(text: str) -> list[int]:
    codes = []
    for char in text:
        codes.append(ord(char))
    return codes


assert char_codes("abc") == [97, 98, 99]
assert char_codes("A z") == [65, 32, 122]
assert char_codes("") == []


# == replace_char, replace_character, substitute_char
# text: s, string, word
# old: before, source, a
# new: after, replacement, b
# char: c, ch, letter
# result: output, replaced, changed
# - Replace every {old} in {text} by {new}.
# - Return {text} with the character {old} replaced by {new} everywhere.
# - Exchange all occurrences of the character {old} in {text} for {new}.
# - Return a copy of {text} in which {new} stands in place of each {old}.
# - Replace one character of a string by another, wherever it occurs.
# ? Write {new} wherever {text} has {old}.
# ? Let {new} take the place of all the {old} in {text}.
def replace_char(text: str, old: str, new: str) -> str:
    return text.replace(old, new)


def replace_char(text: str, old: str, new: str) -> str:
    result = ""
    for char in text:
        if char == old:
            result += new
        else:
            result += char
    return result


assert replace_char("banana", "a", "o") == "bonono"
assert replace_char("a b c", " ", "_") == "a_b_c"
assert replace_char("hello", "x", "y") == "hello"
assert replace_char("", "a", "b") == ""


# == common_letters, common_chars, shared_characters
# first: a, s, left
# second: b, t, right
# - Return the sorted characters that occur both in {first} and in {second}.
# - Return the distinct characters that two strings share, as a sorted list.
# - Find the characters common to {first} and {second}, sorted and without repeats.
# - List in alphabetical order the characters of {first} which {second} has too.
# - Return a sorted list of the characters that appear in both strings.
# ? Which characters are in {first} and {second} alike? Sort them; name each one once.
# ? Give an alphabetical list of the characters that neither of two strings lacks.
def common_letters(first: str, second: str) -> list[str]:
    return sorted(set(first) & set(second))


def common_letters(first: str, second: str) -> list[str]:
    result = []
    for char in first:
        if char in second and char not in result:
            result.append(char)
    return sorted(result)


assert common_letters("hello", "world") == ["l", "o"]
assert common_letters("abc", "cba") == ["a", "b", "c"]
assert common_letters("abc", "xyz") == []
assert common_letters("", "abc") == []


# == is_vowel, check_vowel, is_letter_vowel
# char: letter, c, ch
# - Return True if {char} is a vowel.
# - Check whether the letter {char} is one of a, e, i, o, u, in either case.
# - Check if a single character is a vowel.
# - Return whether {char} is a vowel, upper or lower case.
# - Test if the given letter is a vowel.
# ? Say whether {char} is a, e, i, o or u, or one of them as a capital.
# ? Is {char} a vowel rather than a consonant?
def is_vowel(char: str) -> bool:
    return char in ["a", "e", "i", "o", "u", "A", "E", "I", "O", "U"]


def is_vowel(char: str) -> bool:
    return char.lower() in {"a", "e", "i", "o", "u"}


assert is_vowel("a")
assert is_vowel("U")
assert not is_vowel("b")
assert not is_vowel("y")


# == string_to_int, parse_int, text_to_int
# text: s, string, digits
# result: number, value, total
# char: c, ch, digit
# sign: factor, direction
# - Convert the decimal string {text} to an integer; it may begin with a minus sign.
# - Parse an integer from its decimal digits.
# - Return the integer written in {text}, such as -42 for "-42".
# - Turn a string of digits, perhaps with a leading "-", into the integer it shows.
# - Return the value of the decimal number in {text} as an int.
# ? Which whole number, maybe negative, do the digits of {text} stand for?
# ? Read {text} as an integer.
def string_to_int(text: str) -> int:
    sign = 1
    if text.startswith("-"):
        sign = -1
        text = text[1:]
    result = 0
    for char in text:
        result = result * 10 + ord(char) - ord("0")
    return sign * result


def string_to_int(text: str) -> int:
    return int(text)


assert string_to_int("123") == 123
assert string_to_int("-42") == -42
assert string_to_int("0") == 0
assert string_to_int("007") == 7
