"""Text and words."""

import re
from collections import Counter


# == count_words, word_frequency, word_counts
# text: s, sentence, string
# counts: freq, frequencies, result
# word: w, token, term
# - Return a dictionary with the number of occurrences of each word in {text}.
# - Count how often each word occurs in {text}.
# - Count the words of {text}; return a dict that maps each word to its count.
# - Return a dict of word counts for the words of {text}, separated by whitespace.
# - Build a dictionary of word frequencies.
# - Map every word in {text} to the number of times it appears.
# ? Tell for each word how many times it stands in {text}, as a dictionary.
# ? Make a dict with the different words of {text} and how often each is used.
def count_words(text: str) -> dict[str, int]:
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return counts


def count_words(text: str) -> dict[str, int]:
    counts = {}
    for word in text.split():
        if word in counts:
            counts[word] += 1
        else:
            counts[word] = 1
    return counts


def count_words(text: str) -> dict[str, int]:
    return dict(Counter(text.split()))


assert count_words("a b a") == {"a": 2, "b": 1}
assert count_words("the cat and the dog") == {"the": 2, "cat": 1, "and": 1, "dog": 1}
assert count_words("one") == {"one": 1}
assert count_words("") == {}


# == number_of_words, how_many_words, total_words
# text: s, sentence, string
# count: total, counter, result
# - Return the number of words in {text}.
# - Return how many words {text} has, as an integer.
# - Compute the total number of words in {text}, which whitespace separates.
# - Return the number of whitespace-separated words of a text.
# - Find out how many words a sentence has.
# ? Of how many words does {text} consist?
# ? Give one number: the length of {text} in words.
def number_of_words(text: str) -> int:
    return len(text.split())


def number_of_words(text: str) -> int:
    count = 0
    for _ in text.split():
        count += 1
    return count


assert number_of_words("the quick brown fox") == 4
assert number_of_words("  hello   world ") == 2
assert number_of_words("one") == 1
assert number_of_words("") == 0


# == longest_word, find_longest_word, get_longest_word
# text: s, sentence, string
# longest: best, result, current
# word: w, token, term
# - Return the longest word in {text}.
# - Find the longest word of {text}.
# - Return the longest word; of several equally long ones, the first.
# - Find the word with the most letters in a sentence.
# - Return the first word of {text} that no other word exceeds in length.
# ? Which word of {text} has the most characters? Of equals, take the first.
# ? Give the word of greatest length in {text}.
def longest_word(text: str) -> str:
    longest = ""
    for word in text.split():
        if len(word) > len(longest):
            longest = word
    return longest


def longest_word(text: str) -> str:
    return max(text.split(), key=len, default="")


assert longest_word("the quick brown fox jumped") == "jumped"
assert longest_word("one two three four") == "three"
assert longest_word("red green brown") == "green"
assert longest_word("word") == "word"


# == shortest_word, find_shortest_word, get_shortest_word
# text: s, sentence, string
# words: tokens, parts, terms
# shortest: best, result, current
# word: w, token, term
# - Return the shortest word in {text}.
# - Find the shortest word of {text}.
# - Return the shortest word; of several equally short ones, the first.
# - Find the word with the fewest letters in a sentence.
# - Return the first word of {text} than which no other word is shorter.
# ? Which word of {text} has the fewest characters? Of equals, take the first.
# ? Give the word of least length in {text}.
def shortest_word(text: str) -> str:
    return min(text.split(), key=len)


def shortest_word(text: str) -> str:
    words = text.split()
    shortest = words[0]
    for word in words:
        if len(word) < len(shortest):
            shortest = word
    return shortest


assert shortest_word("the quick brown ox") == "ox"
assert shortest_word("one two three") == "one"
assert shortest_word("word") == "word"


# ==! average_word_length, mean_word_length
# text: s, sentence, string
# words: tokens, parts, terms
# word: w, token, term
# - Return the average length of the words in {text}, or 0 if there are none.
# - Compute the mean word length of {text}; a text without words has 0.
# - Return how many letters a word of {text} has on average; 0 without words.
# - Divide the total length of all words of {text} by their number; return 0 for none.
# - Calculate the average number of characters per word (0 for an empty text).
# ? How long are the words of {text} on average? Answer 0 if it has no words.
# ? Give the mean of the word lengths in {text}, and 0 for a text without any word.
def average_word_length(text: str) -> float:
    words = text.split()
    if not words:
        return 0
    return sum(len(word) for word in words) / len(words)


def average_word_length(text: str) -> float:
    lengths = [len(word) for word in text.split()]
    return sum(lengths) / len(lengths) if lengths else 0


assert average_word_length("one three") == 4.0
assert average_word_length("a bb") == 1.5
assert average_word_length("word") == 4.0
assert average_word_length("") == 0


# == reverse_words, reverse_word_order, words_reversed
# text: s, sentence, string
# words: tokens, parts, result
# - Return {text} with its words in reverse order.
# - Reverse the order of the words in {text}.
# - Put the words of {text} in reverse order, with single spaces between.
# - Return the sentence with its last word first and its first word last.
# - Reverse the words of a sentence, but not the letters of a word.
# ? Write the words of {text} from the last to the first.
# ? Turn the order of words in {text} around, each word staying as it is.
def reverse_words(text: str) -> str:
    return " ".join(text.split()[::-1])


def reverse_words(text: str) -> str:
    words = text.split()
    words.reverse()
    return " ".join(words)


def reverse_words(text: str) -> str:
    return " ".join(reversed(text.split()))


assert reverse_words("hello big world") == "world big hello"
assert reverse_words("one") == "one"
assert reverse_words("") == ""


# == reverse_each_word, flip_words, reverse_letters_of_words
# text: s, sentence, string
# words: tokens, parts, result
# word: w, token, part
# - Reverse the letters of each word in {text}, keeping the order of the words.
# - Return {text} with every word spelled backwards, the words in the same order.
# - Spell each word of a sentence backwards, but leave the words in their places.
# - Reverse every word of {text} on its own.
# - Turn "hello world" into "olleh dlrow", and likewise any other text.
# ? Write the letters of each single word of {text} from last to first.
# ? Flip all words of {text} where they stand.
def reverse_each_word(text: str) -> str:
    return " ".join(word[::-1] for word in text.split())


def reverse_each_word(text: str) -> str:
    words = []
    for word in text.split():
        words.append(word[::-1])
    return " ".join(words)


assert reverse_each_word("hello world") == "olleh dlrow"
assert reverse_each_word("abc") == "cba"
assert reverse_each_word("") == ""


# == unique_words, distinct_words, sorted_unique_words
# text: s, sentence, string
# words: tokens, found, result
# word: w, token, term
# - Return the distinct words of {text} in lower case as a sorted list.
# - List the different words in {text}, lowercased and in alphabetical order.
# - Return a sorted list of the unique lowercase words of {text}.
# - Find all words of {text}, each once, in lower case and sorted.
# - Collect the words of a text without duplicates, ignoring case; sort them.
# ? Which words does {text} use? Name each in lower case, just once, from a to z.
# ? Give the vocabulary of {text} as an alphabetical list of lowercase words.
def unique_words(text: str) -> list[str]:
    return sorted(set(text.lower().split()))


def unique_words(text: str) -> list[str]:
    words = []
    for word in text.lower().split():
        if word not in words:
            words.append(word)
    return sorted(words)


assert unique_words("the cat and The dog") == ["and", "cat", "dog", "the"]
assert unique_words("b a b") == ["a", "b"]
assert unique_words("") == []


# == word_lengths, lengths_of_words, get_word_lengths
# text: s, sentence, string
# lengths: result, sizes, output
# word: w, token, term
# - Return a list with the length of each word in {text}.
# - Return the lengths of the words of {text} in order, as a list.
# - List how many characters each word of {text} has.
# - Compute the length of every word in a sentence.
# - Return one integer per word of {text}, namely its length.
# ? How long are the words of {text}, one after the other? Give a list.
# ? Replace each word of {text} by the number of its characters, and return these in a list.
def word_lengths(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def word_lengths(text: str) -> list[int]:
    lengths = []
    for word in text.split():
        lengths.append(len(word))
    return lengths


def word_lengths(text: str) -> list[int]:
    return list(map(len, text.split()))


assert word_lengths("the quick brown fox") == [3, 5, 5, 3]
assert word_lengths("one") == [3]
assert word_lengths("") == []


# == acronym, make_acronym, abbreviate
# text: phrase, s, name
# letters: result, initials, output
# word: w, token, part
# - Return the acronym of {text}: the first letter of each word in upper case.
# - Make an acronym from the first letters of the words in {text}, all capitals.
# - Abbreviate {text} by the upper-case first letters of its words.
# - Build an acronym such as "WWW" from "world wide web".
# - Join the initial letters of a phrase, in upper case.
# ? Shorten {text} to one capital letter for each of its words.
# ? Turn "as soon as possible" into "ASAP", and any other words alike.
def acronym(text: str) -> str:
    return "".join(word[0].upper() for word in text.split())


def acronym(text: str) -> str:
    letters = ""
    for word in text.split():
        letters += word[0]
    return letters.upper()


assert acronym("world wide web") == "WWW"
assert acronym("Portable network graphics") == "PNG"
assert acronym("python") == "P"
assert acronym("") == ""


# == initials, name_initials, get_initials
# name: full_name, person, s
# part: word, piece, token
# - Return the initials of {name}, each followed by a dot: "Ada Lovelace" gives "A.L.".
# - Build initials such as "J.F.K." from a full name.
# - Write the first letter of each part of {name} in upper case with a dot behind it.
# - Reduce every part of a name to its capital initial and a period, without spaces.
# - Turn "alan turing" into "A.T.", and any other name alike.
# ? Shorten a person's {name} to dotted capital initials, like "G.H.H.".
# ? Give a capital letter and a dot for each word of {name}, with no spaces between.
def initials(name: str) -> str:
    return "".join(part[0].upper() + "." for part in name.split())


assert initials("Ada Lovelace") == "A.L."
assert initials("john fitzgerald kennedy") == "J.F.K."
assert initials("Plato") == "P."
assert initials("") == ""


# == split_sentences, split_into_sentences, sentences
# text: s, paragraph, document
# - Split {text} into a list of its sentences.
# - Split {text} after every ".", "!" or "?" that is followed by whitespace.
# - Return the sentences of {text}, each with the sign that closes it.
# - Break a paragraph into sentences, keeping their punctuation.
# - List the sentences of {text} without the spaces between them.
# ? Cut {text} into sentences, each with its final period, question or exclamation mark.
# ? Which sentences does {text} consist of? Keep their end signs.
def split_sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text.strip())


assert split_sentences("Hello there. How are you? Fine!") == [
    "Hello there.",
    "How are you?",
    "Fine!",
]
assert split_sentences("Just one.") == ["Just one."]
assert split_sentences("It costs 2.50 now. Buy it!") == ["It costs 2.50 now.", "Buy it!"]


# == count_sentences, sentence_count, number_of_sentences
# text: s, paragraph, document
# part: piece, sentence, chunk
# parts: pieces, found, chunks
# - Return the number of sentences in {text}; they end with ".", "!" or "?".
# - Count the sentences of {text}, several end signs in a row counting once.
# - Count how many sentences {text} has, where "?!" or "..." ends just one.
# - Return how many runs of periods, exclamation and question marks {text} has.
# - Count the sentences in a text by their closing punctuation.
# ? How many sentences are there in {text}, each closed by one or more of ".!?"?
# ? Give the number of times that a sentence of {text} comes to its end.
def count_sentences(text: str) -> int:
    return len(re.findall(r"[.!?]+", text))


def count_sentences(text: str) -> int:
    count = 0
    previous = ""
    for char in text:
        if char in ".!?" and previous not in (".", "!", "?"):
            count += 1
        previous = char
    return count


assert count_sentences("Hello. How are you?") == 2
assert count_sentences("What?! No way... Yes.") == 3
assert count_sentences("Stop!") == 1
assert count_sentences("") == 0


# == wrap_text, wrap, wrap_lines
# text: s, paragraph, string
# width: max_width, limit, columns
# lines: result, rows, output
# line: current, row, buffer
# word: w, token, term
# - Break {text} into a list of lines of at most {width} characters, between words.
# - Wrap {text} to lines no longer than {width}; return them as a list.
# - Fill lines with as many words of {text} as fit into {width} characters each.
# - Split {text} at spaces into lines that are at most {width} characters long.
# - Wrap the words of a paragraph to a maximum line length and return the lines.
# ? Distribute the words of {text} over lines of up to {width} characters; list the lines.
# ? Start a new line whenever the next word would make it longer than {width}.
def wrap_text(text: str, width: int) -> list[str]:
    lines = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        elif line:
            line += " " + word
        else:
            line = word
    if line:
        lines.append(line)
    return lines


def wrap_text(text: str, width: int) -> list[str]:
    lines = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


assert wrap_text("the quick brown fox jumps", 10) == ["the quick", "brown fox", "jumps"]
assert wrap_text("a b c d", 3) == ["a b", "c d"]
assert wrap_text("hello", 10) == ["hello"]
assert wrap_text("", 5) == []


# == indent_text, indent_lines, add_indentation
# text: s, block, source
# width: spaces, amount, n
# line: row, part, piece
# prefix: padding, margin, space
# - Put {width} spaces in front of every line of {text}.
# - Indent each line of {text} by {width} spaces.
# - Return {text} with all its lines indented by {width} spaces.
# - Add {width} spaces at the start of every line.
# - Indent all lines of a text block by the given number of spaces.
# ? Move each line of {text} to the right by {width} columns.
# ? Let all lines of {text} begin with {width} more blanks.
def indent_text(text: str, width: int) -> str:
    prefix = " " * width
    return "\n".join(prefix + line for line in text.split("\n"))


def indent_text(text: str, width: int) -> str:
    prefix = " " * width
    return prefix + text.replace("\n", "\n" + prefix)


assert indent_text("hello", 4) == "    hello"
assert indent_text("x", 0) == "x"
assert indent_text("a\nb", 2) == "  a\n  b"


# == count_text_lines, lines_in_text, number_of_text_lines
# text: s, string, document
# count: total, counter, result
# - Return the number of lines in the string {text}.
# - Count the lines of {text}; a newline at its end starts no further line.
# - Count how many lines a string has; an empty string has none.
# - Return how many lines the given text consists of.
# - Count the lines in a multi-line string.
# ? Over how many lines does the string {text} extend?
# ? Give the number of lines that {text}, a string, would fill on a screen.
def count_text_lines(text: str) -> int:
    return len(text.splitlines())


def count_text_lines(text: str) -> int:
    if not text:
        return 0
    count = text.count("\n")
    if not text.endswith("\n"):
        count += 1
    return count


assert count_text_lines("one line") == 1
assert count_text_lines("") == 0
assert count_text_lines("one\ntwo\nthree") == 3
assert count_text_lines("one\ntwo\n") == 2


# == number_lines, add_line_numbers, enumerate_lines
# text: s, source, block
# lines: result, rows, output
# number: i, n, position
# line: row, part, piece
# - Put a number, a colon and a space before every line of {text}, starting with 1.
# - Number the lines of {text} as in "1: first line", and join them again.
# - Return {text} with each line preceded by its number from 1 on, as in "2: text".
# - Add line numbers, beginning with 1, followed by ": " to all lines of {text}.
# - Prefix every line with its one-based number and ": ".
# ? Let each line of {text} begin with its number ("1: ", "2: " and so on).
# ? Show {text} with its lines counted from one, a colon and a blank after the number.
def number_lines(text: str) -> str:
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        lines.append(f"{number}: {line}")
    return "\n".join(lines)


def number_lines(text: str) -> str:
    return "\n".join(f"{number}: {line}" for number, line in enumerate(text.split("\n"), 1))


assert number_lines("hello") == "1: hello"
assert number_lines("two words") == "1: two words"
assert number_lines("a\nb") == "1: a\n2: b"
assert number_lines("x\n\ny") == "1: x\n2: \n3: y"


# == remove_blank_lines, remove_empty_lines, drop_blank_lines
# text: s, document, block
# lines: result, kept, rows
# line: row, part, piece
# - Return {text} without its blank lines.
# - Remove all lines of {text} that are empty or contain only whitespace.
# - Drop every blank line from {text} and join the others by newlines.
# - Return a copy of the text with empty lines removed.
# - Delete the lines of {text} that hold nothing but spaces.
# ? Keep just those lines of {text} on which something is written.
# ? Leave out the lines of {text} where there is nothing to see.
def remove_blank_lines(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip())


def remove_blank_lines(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if line.strip():
            lines.append(line)
    return "\n".join(lines)


assert remove_blank_lines("no blank lines") == "no blank lines"
assert remove_blank_lines("") == ""
assert remove_blank_lines("a\n\nb") == "a\nb"
assert remove_blank_lines("\na\n   \n\nb\n") == "a\nb"


# == longest_line, find_longest_line, widest_line
# text: s, document, block
# longest: best, result, widest
# line: row, part, piece
# - Return the longest line of {text}.
# - Find the line with the most characters in a multi-line text.
# - Return the line of {text} that is the longest; of several, the first.
# - Find the longest of the lines in {text}.
# - Return the widest line of a text, the first one if several are equally wide.
# ? Which line of {text} has the greatest length? Of equals, take the first.
# ? Give the line of {text} that needs the most room.
def longest_line(text: str) -> str:
    longest = ""
    for line in text.splitlines():
        if len(line) > len(longest):
            longest = line
    return longest


def longest_line(text: str) -> str:
    return max(text.splitlines(), key=len, default="")


assert longest_line("only one") == "only one"
assert longest_line("") == ""
assert longest_line("a\nlong line\nshort") == "long line"
assert longest_line("ab\ncd") == "ab"


# == most_common_words, top_words, most_frequent_words
# text: s, sentence, document
# n: k, limit, amount
# counts: freq, frequencies, counter
# word: w, token, term
# - Return a list of the {n} most frequent words in {text}, the most frequent first.
# - List the {n} words that occur most often in {text}, by falling frequency.
# - Find the {n} most common words of {text}; equally common ones in order of appearance.
# - Return the top {n} words of a text, without their counts.
# - Return the {n} commonest words as a list, beginning with the commonest.
# ? Which {n} words are used most in {text}? List just the words, the favourite first.
# ? Name the {n} words of {text} with the highest counts, from high to low.
def most_common_words(text: str, n: int) -> list[str]:
    counts = Counter(text.split())
    return [word for word, _ in counts.most_common(n)]


def most_common_words(text: str, n: int) -> list[str]:
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    ordered = sorted(counts, key=lambda word: -counts[word])
    return ordered[:n]


assert most_common_words("a b a c a b", 2) == ["a", "b"]
assert most_common_words("to be or not to be to", 1) == ["to"]
assert most_common_words("x", 3) == ["x"]
assert most_common_words("", 2) == []


# == most_common_word, most_frequent_word, top_word
# text: s, sentence, document
# counts: freq, frequencies, counter
# word: w, token, term
# - Return the word that occurs most often in {text}.
# - Find the most common word of {text}.
# - Return the single most frequent word in a text; of several, the one that comes first.
# - Find the word with the highest number of occurrences in {text}.
# - Return the word used most often in a sentence.
# ? Which one word is repeated most in {text}?
# ? Give the favourite word of {text}, that is, the one with the highest count.
def most_common_word(text: str) -> str:
    return Counter(text.split()).most_common(1)[0][0]


def most_common_word(text: str) -> str:
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return max(counts, key=counts.get)


assert most_common_word("the cat and the dog") == "the"
assert most_common_word("a b b c") == "b"
assert most_common_word("one") == "one"


# == count_word, word_occurrences, occurrences_of_word
# text: s, sentence, document
# word: target, term, w
# current: token, other, part
# count: total, counter, result
# - Return how often the word {word} occurs in {text}, ignoring case.
# - Count the occurrences of {word} among the words of {text}, in any case.
# - Count how many words of {text} equal {word} when case is ignored.
# - Return the number of times one given word appears in {text}, case-insensitively.
# - Count a single word in a text without regard to case; parts of words do not count.
# ? How many words of {text} are {word}, in capitals or not?
# ? Give the number of times {word} stands in {text} as a whole word, whatever its case.
def count_word(text: str, word: str) -> int:
    return text.lower().split().count(word.lower())


def count_word(text: str, word: str) -> int:
    count = 0
    for current in text.split():
        if current.lower() == word.lower():
            count += 1
    return count


assert count_word("The cat and the dog", "the") == 2
assert count_word("theme of the other", "the") == 1
assert count_word("a b c", "x") == 0
assert count_word("", "a") == 0


# == find_emails, extract_emails, email_addresses
# text: s, document, page
# pattern: regex, expression, rule
# - Return a list of all e-mail addresses in {text}.
# - Find every e-mail address that occurs in {text}.
# - Extract the email addresses from {text} with a regular expression.
# - List the addresses of the form name@domain.tld in {text}, in order.
# - Search a text for e-mail addresses and return them in a list.
# ? Which e-mail addresses are mentioned in {text}?
# ? Pick out of {text} all that looks like someone@some.domain, and list it.
def find_emails(text: str) -> list[str]:
    return re.findall(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", text)


def find_emails(text: str) -> list[str]:
    pattern = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
    return pattern.findall(text)


assert find_emails("Mail ann@example.com or bob@mail.org.") == ["ann@example.com", "bob@mail.org"]
assert find_emails("me@site.co.uk") == ["me@site.co.uk"]
assert find_emails("nothing here @ all") == []
assert find_emails("") == []


# == extract_numbers, find_numbers, numbers_in_text
# text: s, sentence, string
# numbers: result, found, values
# - Return a list of the whole numbers that occur in {text}, as integers.
# - Extract all unsigned integers from {text}, in order.
# - Find every run of digits in {text} and convert each to an int.
# - List the integers written with digits in {text}.
# - Find the numbers in a sentence and return them as a list of ints.
# ? Which whole numbers are mentioned in {text}? Give them as a list of integers.
# ? Pick all groups of digits out of {text} and return their values.
def extract_numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]


def extract_numbers(text: str) -> list[int]:
    numbers = []
    current = ""
    for char in text + " ":
        if char.isdigit():
            current += char
        elif current:
            numbers.append(int(current))
            current = ""
    return numbers


def extract_numbers(text: str) -> list[int]:
    return list(map(int, re.findall(r"[0-9]+", text)))


assert extract_numbers("3 apples and 12 pears") == [3, 12]
assert extract_numbers("room 101") == [101]
assert extract_numbers("none") == []
assert extract_numbers("") == []


# == find_hashtags, extract_hashtags, hashtags
# text: post, message, s
# words: result, found, tags
# word: w, token, part
# - Return a list of the hashtags in {text}, without the "#".
# - Find all words of {text} that follow a "#"; leave the "#" out.
# - Extract the hashtags from {text} in order, each without its leading "#".
# - List the tags that {text} marks by "#", without that sign.
# - Find the hashtags in a message and return their names.
# ? With which tags is {text} marked? "#fun" counts as "fun".
# ? Collect from {text} each word that has a "#" right before it, but not the sign.
def find_hashtags(text: str) -> list[str]:
    return re.findall(r"#(\w+)", text)


def find_hashtags(text: str) -> list[str]:
    words = []
    for word in re.findall(r"#\w+", text):
        words.append(word[1:])
    return words


assert find_hashtags("I love #python and #coding") == ["python", "coding"]
assert find_hashtags("#one") == ["one"]
assert find_hashtags("no tags") == []
assert find_hashtags("") == []


# == find_urls, extract_urls, links_in_text
# text: s, page, document
# pattern: regex, expression, rule
# word: w, token, part
# - Return a list of all URLs in {text} that begin with http:// or https://.
# - Find every web address in {text}, up to the next whitespace.
# - Extract the http and https links from {text} in order.
# - List the URLs of a text, each from "http" to the next space.
# - Find the links in a text that start with http:// or https://.
# ? Which web addresses (http or https) occur in {text}?
# ? Pick all http and https links out of {text}; a space ends a link.
def find_urls(text: str) -> list[str]:
    return re.findall(r"https?://\S+", text)


def find_urls(text: str) -> list[str]:
    return [word for word in text.split() if word.startswith(("http://", "https://"))]


assert find_urls("see https://example.com/a and http://test.org now") == [
    "https://example.com/a",
    "http://test.org",
]
assert find_urls("http://only.one") == ["http://only.one"]
assert find_urls("no links") == []


# == replace_words, substitute_words, translate_words
# text: s, sentence, string
# replacements: mapping, substitutes, table
# word: w, token, term
# words: result, output, tokens
# - Replace the words of {text} that are keys of {replacements} by their values.
# - Return {text} with each word looked up in {replacements}, unknown words unchanged.
# - Replace every word of {text} as the dict {replacements} says; keep the others.
# - Exchange whole words in {text} according to a dictionary, with spaces between them.
# - Substitute words by means of a dictionary from old words to new ones.
# ? For each word of {text} write what {replacements} has for it, or else the word itself.
# ? Translate {text} word by word with the dictionary {replacements}, leaving what it lacks.
def replace_words(text: str, replacements: dict[str, str]) -> str:
    return " ".join(replacements.get(word, word) for word in text.split())


def replace_words(text: str, replacements: dict[str, str]) -> str:
    words = []
    for word in text.split():
        if word in replacements:
            words.append(replacements[word])
        else:
            words.append(word)
    return " ".join(words)


assert replace_words("hello my friend", {"hello": "bye", "friend": "enemy"}) == "bye my enemy"
assert replace_words("a b a", {"a": "c"}) == "c b c"
assert replace_words("same text", {}) == "same text"
assert replace_words("", {"a": "b"}) == ""


# == censor, censor_word, mask_word
# text: s, sentence, message
# word: banned, target, forbidden
# - Replace every occurrence of {word} in {text} by as many asterisks as it has letters.
# - Censor {word} in {text} with "*" for each of its characters.
# - Return {text} with each {word} hidden behind stars of the same length.
# - Mask a word in a text with asterisks, one for every letter of the word.
# - Overwrite {word} with asterisks wherever it occurs in {text}.
# ? Make {word} unreadable in {text}: one star in place of each letter.
# ? Blot out {word} in {text}, so that "my cat" becomes "my ***" for "cat".
def censor(text: str, word: str) -> str:
    return text.replace(word, "*" * len(word))


def censor(text: str, word: str) -> str:
    return re.sub(re.escape(word), "*" * len(word), text)


assert censor("this is bad", "bad") == "this is ***"
assert censor("no no no", "no") == "** ** **"
assert censor("fine", "bad") == "fine"
assert censor("", "bad") == ""


# == split_words, tokenize, extract_words
# text: s, sentence, document
# - Return the lowercase words of {text} without punctuation.
# - Split {text} into words of letters only, all in lower case.
# - Return a list of the words in {text}, lowercased, with signs and spaces left out.
# - Tokenize {text} into lowercase words made of the letters a to z.
# - Find all runs of letters in the lowercased {text}.
# ? List the words of {text} in small letters, free of commas, dots and other signs.
# ? Which words, taken as letters only and in lower case, follow each other in {text}?
def split_words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def split_words(text: str) -> list[str]:
    return re.sub(r"[^a-z]", " ", text.lower()).split()


assert split_words("Hello, World!") == ["hello", "world"]
assert split_words("one-two  three.") == ["one", "two", "three"]
assert split_words("?!") == []
assert split_words("") == []


# == normalize_whitespace, collapse_whitespace, squeeze_whitespace
# text: s, string, value
# - Replace every run of whitespace in {text} by one space and strip both ends.
# - Return {text} with single spaces between its words and none at the ends.
# - Collapse repeated whitespace in {text}, also newlines, to single spaces; strip it.
# - Normalize the whitespace of {text}: single spaces inside, nothing around.
# - Remove extra spaces, tabs and newlines, leaving one space between words.
# ? Let exactly one blank stand between two words of {text}, and none outside.
# ? Tidy up {text}: no space before or after it, never two between words.
def normalize_whitespace(text: str) -> str:
    return " ".join(text.split())


def normalize_whitespace(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


assert normalize_whitespace("  hello   world ") == "hello world"
assert normalize_whitespace("a b") == "a b"
assert normalize_whitespace("   ") == ""
assert normalize_whitespace("a\t b\n\nc") == "a b c"


# == words_longer_than, long_words, filter_long_words
# text: s, sentence, string
# length: n, limit, size
# word: w, token, term
# result: found, words, output
# - Return the words of {text} that have more than {length} characters.
# - List all words in {text} longer than {length}, in order.
# - Find the words of {text} whose length exceeds {length}.
# - Return a list of those words that are longer than {length} characters.
# - Filter the words of a sentence, keeping those with more than {length} letters.
# ? Which words of {text} need more than {length} characters?
# ? Leave only the words above a length of {length}, as a list.
def words_longer_than(text: str, length: int) -> list[str]:
    return [word for word in text.split() if len(word) > length]


def words_longer_than(text: str, length: int) -> list[str]:
    result = []
    for word in text.split():
        if len(word) > length:
            result.append(word)
    return result


assert words_longer_than("the quick brown fox", 3) == ["quick", "brown"]
assert words_longer_than("a bb ccc", 0) == ["a", "bb", "ccc"]
assert words_longer_than("a bb", 5) == []
assert words_longer_than("", 1) == []


# == words_starting_with, words_with_first_letter, find_words_starting_with
# text: s, sentence, string
# letter: char, first, initial
# word: w, token, term
# result: found, words, output
# - Return the words of {text} that begin with {letter}, in upper or lower case.
# - List all words in {text} starting with {letter}, ignoring case.
# - Find the words of {text} whose first letter is {letter}; case does not matter.
# - Return a list of those words that start with a letter, case-insensitively.
# - Filter the words of a sentence by their first letter, whatever its case.
# ? Which words of {text} have {letter}, big or small, at their start?
# ? Leave only the words that {letter} introduces, in either case, as a list.
def words_starting_with(text: str, letter: str) -> list[str]:
    return [word for word in text.split() if word.lower().startswith(letter.lower())]


def words_starting_with(text: str, letter: str) -> list[str]:
    result = []
    for word in text.split():
        if word[0].lower() == letter.lower():
            result.append(word)
    return result


assert words_starting_with("Apples and pears are fruit", "a") == ["Apples", "and", "are"]
assert words_starting_with("big Bad wolf", "B") == ["big", "Bad"]
assert words_starting_with("one two", "x") == []
assert words_starting_with("", "a") == []


# == remove_stop_words, remove_stopwords, drop_stop_words
# text: s, sentence, document
# stop_words: stopwords, ignored, excluded
# word: w, token, term
# words: kept, result, output
# - Remove the words in {stop_words} from {text}, ignoring case.
# - Return {text} without those words that occur in {stop_words}, in any case.
# - Drop every word of {text} whose lower case is in the list {stop_words}.
# - Filter out stop words, compared in lower case; join the others by spaces.
# - Return the words of {text} that are no stop words, joined by spaces.
# ? Leave out of {text} all that {stop_words}, a list in lower case, contains.
# ? What remains of {text} without the words of the lowercase list {stop_words}?
def remove_stop_words(text: str, stop_words: list[str]) -> str:
    return " ".join(word for word in text.split() if word.lower() not in stop_words)


def remove_stop_words(text: str, stop_words: list[str]) -> str:
    words = []
    for word in text.split():
        if word.lower() not in stop_words:
            words.append(word)
    return " ".join(words)


assert remove_stop_words("The cat is on the mat", ["the", "is", "on"]) == "cat mat"
assert remove_stop_words("hello world", []) == "hello world"
assert remove_stop_words("a A a", ["a"]) == ""


# == strip_tags, remove_html_tags, remove_tags
# text: markup, source, page
# result: plain, output, cleaned
# inside: in_tag, skipping, hidden
# char: c, ch, symbol
# - Remove all HTML tags from {text}.
# - Return {text} without what stands between "<" and ">", and without these signs.
# - Strip the tags such as <b> and </b> from {text}, keeping what is between them.
# - Delete everything from each "<" to the next ">" in {text}.
# - Return the plain text of a piece of HTML, without its tags.
# ? What remains of the HTML {text} when all its tags are left out?
# ? Turn "<p>Hi</p>" into "Hi", and any other HTML alike.
def strip_tags(text: str) -> str:
    return re.sub(r"<[^>]*>", "", text)


def strip_tags(text: str) -> str:
    result = ""
    inside = False
    for char in text:
        if char == "<":
            inside = True
        elif char == ">":
            inside = False
        elif not inside:
            result += char
    return result


assert strip_tags("<p>Hello <b>world</b></p>") == "Hello world"
assert strip_tags('<a href="x.html">link</a>') == "link"
assert strip_tags("no tags") == "no tags"
assert strip_tags("") == ""


# == find_dates, extract_dates, dates_in_text
# text: s, document, page
# pattern: regex, expression, rule
# - Return a list of all dates in {text} that are written like 2024-01-31.
# - Find every date of the form YYYY-MM-DD in {text}.
# - Extract the ISO dates (four, two and two digits with hyphens) from {text}.
# - List the dates in {text} such as "1999-12-31", as strings in order.
# - Search a text for dates in the format YYYY-MM-DD and return these strings.
# ? Which days, written as year-month-day in digits, occur in {text}?
# ? Pick out of {text} all strings such as "2020-02-29".
def find_dates(text: str) -> list[str]:
    return re.findall(r"\d{4}-\d{2}-\d{2}", text)


def find_dates(text: str) -> list[str]:
    pattern = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
    return [match.group() for match in pattern.finditer(text)]


assert find_dates("from 2024-01-31 to 2024-02-15") == ["2024-01-31", "2024-02-15"]
assert find_dates("on 1999-12-31.") == ["1999-12-31"]
assert find_dates("12/31/1999") == []
assert find_dates("") == []


# == join_with_and, format_list, list_in_words
# words: items, names, parts
# - Join {words} by commas, with "and" before the last: "a, b and c".
# - Return {words} as an enumeration such as "red, green and blue".
# - Write {words} as English text with commas and a final "and".
# - Join a list of strings: "a" for one, "a and b" for two, "a, b and c" for three.
# - Format a list for humans, as in "one, two and three"; no comma before "and".
# ? Enumerate {words} in a sentence, "and" standing between the last two.
# ? Say {words} as in "x", "x and y" or "x, y and z"; nothing gives an empty string.
def join_with_and(words: list[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]


def join_with_and(words: list[str]) -> str:
    if not words:
        return ""
    if len(words) == 1:
        return words[0]
    last = words[-1]
    return ", ".join(words[:-1]) + f" and {last}"


assert join_with_and(["a", "b", "c"]) == "a, b and c"
assert join_with_and(["x", "y"]) == "x and y"
assert join_with_and(["one"]) == "one"
assert join_with_and([]) == ""


# == last_word_length, length_of_last_word
# text: s, sentence, string
# words: tokens, parts, terms
# - Return the length of the last word in {text}, or 0 if there is no word.
# - Find how many characters the last word of {text} has; 0 without words.
# - Return the number of letters in the final word of {text} (0 if it has none).
# - Compute the length of the last word, ignoring spaces at the end; 0 for no words.
# - Return how long the last word of a sentence is, and 0 for an empty one.
# ? Of how many characters is the word at the end of {text}? Without a word, 0.
# ? Measure the final word of {text}; say 0 when {text} has no words at all.
def last_word_length(text: str) -> int:
    words = text.split()
    return len(words[-1]) if words else 0


def last_word_length(text: str) -> int:
    words = text.split()
    if not words:
        return 0
    return len(words[-1])


assert last_word_length("hello big world") == 5
assert last_word_length("fly me to the moon  ") == 4
assert last_word_length("one") == 3
assert last_word_length("") == 0


# == is_same_text, equal_ignoring_case, same_text
# first: a, s, left
# second: b, t, right
# - Return True if {first} and {second} are equal when case is ignored.
# - Check whether two texts differ at most in upper and lower case.
# - Compare {first} with {second} without regard to case.
# - Return whether {first} equals {second}, case-insensitively.
# - Check if two strings are the same, ignoring case.
# ? Are {first} and {second} alike but for capital and small letters?
# ? Say whether {first} in lower case is {second} in lower case.
def is_same_text(first: str, second: str) -> bool:
    return first.lower() == second.lower()


def is_same_text(first: str, second: str) -> bool:
    return first.casefold() == second.casefold()


assert is_same_text("Hello", "hELLO")
assert is_same_text("", "")
assert not is_same_text("hello", "help")
assert not is_same_text("a", "")
