"""Dictionaries and sets."""

from collections import defaultdict


# == invert_dict, invert_mapping, swap_keys_and_values
# mapping: d, data
# - Swap keys and values of a dictionary.
# - Return a dictionary with keys and values exchanged.
# - Turn the values of {mapping} into keys, and its keys into values.
# - Invert {mapping}.
# ? Exchange the keys of {mapping} for its values.
def invert_dict(mapping: dict) -> dict:
    return {value: key for key, value in mapping.items()}


def invert_dict(mapping: dict) -> dict:
    result = {}
    for key, value in mapping.items():
        result[value] = key
    return result


assert invert_dict({"a": 1, "b": 2}) == {1: "a", 2: "b"}
assert invert_dict({}) == {}


# == merge_dicts, combine_dicts
# first: a, one, left
# second: b, two, right
# - Merge two dictionaries; values of {second} win.
# - Return a dictionary with the entries of both; the second wins where both have a key.
# - Combine {first} and {second} without changing either.
# ? Put two dictionaries together, with preference for the entries of {second}.
def merge_dicts(first: dict, second: dict) -> dict:
    return {**first, **second}


def merge_dicts(first: dict, second: dict) -> dict:
    merged = dict(first)
    merged.update(second)
    return merged


assert merge_dicts({"a": 1}, {"b": 2}) == {"a": 1, "b": 2}
assert merge_dicts({"a": 1}, {"a": 3}) == {"a": 3}
assert merge_dicts({}, {}) == {}


# == sum_values, total_values
# mapping: d, data
# - Add up the values of a dictionary.
# - Return the sum of all values in {mapping}.
# - Compute the total of the values of {mapping}.
# ? Give the sum over the values of {mapping}.
def sum_values(mapping: dict) -> int:
    return sum(mapping.values())


def sum_values(mapping: dict) -> int:
    total = 0
    for value in mapping.values():
        total += value
    return total


assert sum_values({"a": 1, "b": 2}) == 3
assert sum_values({}) == 0


# == key_with_max_value, max_key
# mapping: d, scores
# - Return the key with the largest value.
# - Find the key of {mapping} whose value is the greatest.
# - Return the key that belongs to the highest value, or None for an empty dictionary.
# ? Which key of {mapping} has the biggest value?
def key_with_max_value(mapping: dict):
    if not mapping:
        return None
    return max(mapping, key=mapping.get)


def key_with_max_value(mapping: dict):
    best = None
    for key in mapping:
        if best is None or mapping[key] > mapping[best]:
            best = key
    return best


assert key_with_max_value({"a": 1, "b": 5, "c": 2}) == "b"
assert key_with_max_value({}) is None


# == filter_by_value, keep_large_values
# mapping: d, data
# limit: threshold, minimum
# - Keep the entries whose value is at least {limit}.
# - Return the part of {mapping} with values of {limit} or more.
# - Drop entries of {mapping} whose value is below {limit}.
# ? Return a dictionary of the entries that reach {limit} with their value.
def filter_by_value(mapping: dict, limit: int) -> dict:
    return {key: value for key, value in mapping.items() if value >= limit}


assert filter_by_value({"a": 1, "b": 5}, 3) == {"b": 5}
assert filter_by_value({"a": 3}, 3) == {"a": 3}
assert filter_by_value({}, 0) == {}


# == sort_by_value, sorted_by_value
# mapping: d, counts
# - Return the items of a dictionary sorted by value.
# - Return (key, value) pairs of {mapping}, smallest value first.
# - Sort the entries of {mapping} by their values, ascending, as a list of pairs.
# ? List the pairs of {mapping} from the smallest value to the largest.
def sort_by_value(mapping: dict) -> list:
    return sorted(mapping.items(), key=lambda item: item[1])


assert sort_by_value({"a": 3, "b": 1, "c": 2}) == [("b", 1), ("c", 2), ("a", 3)]
assert sort_by_value({}) == []


# == group_by, group_items
# items: values, elements
# function: func, classify
# item: value, element
# - Group items by what a function says of them.
# - Return a dictionary from {function}(item) to the list of such items.
# - Put the items with the same result of {function} into one list each.
# - Group {items} by {function}.
# ? Collect {items} in lists by the result of {function}.
def group_by(items: list, function) -> dict:
    groups = {}
    for item in items:
        groups.setdefault(function(item), []).append(item)
    return groups


def group_by(items: list, function) -> dict:
    groups = defaultdict(list)
    for item in items:
        groups[function(item)].append(item)
    return dict(groups)


assert group_by([1, 2, 3, 4], lambda n: n % 2) == {1: [1, 3], 0: [2, 4]}
assert group_by([], len) == {}
assert group_by(["a", "bb", "c"], len) == {1: ["a", "c"], 2: ["bb"]}


# == group_by_length, words_by_length
# words: strings, texts
# word: string, text
# - Group words by their length.
# - Return a dictionary from length to the words of that length.
# - Map each length to the list of words that long.
# ? Sort words into lists by how many letters they have.
def group_by_length(words: list) -> dict:
    groups = {}
    for word in words:
        groups.setdefault(len(word), []).append(word)
    return groups


assert group_by_length(["a", "bb", "c"]) == {1: ["a", "c"], 2: ["bb"]}
assert group_by_length([]) == {}


# == group_anagrams, collect_anagrams
# words: strings, texts
# word: string, text
# - Group words that are anagrams of one another.
# - Return lists of words that have the same letters.
# - Put anagrams together, in the order in which they first appear.
# ? Collect the words made of the same letters in lists.
def group_anagrams(words: list) -> list:
    groups = {}
    for word in words:
        letters = "".join(sorted(word))
        groups.setdefault(letters, []).append(word)
    return list(groups.values())


assert group_anagrams(["eat", "tan", "tea"]) == [["eat", "tea"], ["tan"]]
assert group_anagrams([]) == []


# == flatten_dict, flatten_keys
# mapping: nested, data
# prefix: path, parent
# - Flatten a nested dictionary; keys are joined by dots.
# - Turn nested dictionaries into one whose keys are paths like a.b.
# - Return one flat dictionary with dotted keys.
# ? Make {mapping} flat, with a dot between the keys of each path.
def flatten_dict(mapping: dict, prefix: str = "") -> dict:
    result = {}
    for key, value in mapping.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            result.update(flatten_dict(value, name))
        else:
            result[name] = value
    return result


assert flatten_dict({"a": 1, "b": {"c": 2, "d": {"e": 3}}}) == {"a": 1, "b.c": 2, "b.d.e": 3}
assert flatten_dict({}) == {}


# == get_nested, deep_get
# mapping: data, nested
# path: keys, names
# - Follow a list of keys into nested dictionaries; None if one is missing.
# - Return the value under a path of keys, or None.
# - Look up a value in nested dictionaries by a list of keys; None if it is not there.
# ? Walk into nested dictionaries along {path}; None where the way ends.
def get_nested(mapping: dict, path: list):
    current = mapping
    for key in path:
        if not isinstance(current, dict) or key not in current:
            return None
        current = current[key]
    return current


assert get_nested({"a": {"b": 1}}, ["a", "b"]) == 1
assert get_nested({"a": {"b": 1}}, ["a", "c"]) is None
assert get_nested({"a": 1}, ["a", "b"]) is None


# == pick, pick_keys
# mapping: d, data
# names: keys, wanted
# - Keep only some keys of a dictionary.
# - Return a dictionary with those of {names} that {mapping} has.
# - Pick the entries of {mapping} whose keys are in {names}.
# ? Return the part of {mapping} that {names} lists.
def pick(mapping: dict, names: list) -> dict:
    return {name: mapping[name] for name in names if name in mapping}


assert pick({"a": 1, "b": 2, "c": 3}, ["a", "c"]) == {"a": 1, "c": 3}
assert pick({"a": 1}, ["x"]) == {}


# == omit, without_keys
# mapping: d, data
# names: keys, unwanted
# - Return a dictionary without some keys.
# - Leave out the entries of {mapping} whose keys are in {names}.
# - Copy {mapping} but for the keys in {names}.
# ? Drop the keys in {names} from a copy of {mapping}.
def omit(mapping: dict, names: list) -> dict:
    return {key: value for key, value in mapping.items() if key not in names}


assert omit({"a": 1, "b": 2}, ["a"]) == {"b": 2}
assert omit({}, ["a"]) == {}


# == dict_from_lists, zip_to_dict
# names: keys, labels
# values: items, numbers
# - Make a dictionary of a list of keys and a list of values.
# - Pair the keys in {names} with {values}.
# - Return a dictionary that maps each of {names} to the value at the same place.
# ? Build a dictionary from keys and their values, given as two lists.
def dict_from_lists(names: list, values: list) -> dict:
    return dict(zip(names, values))


def dict_from_lists(names: list, values: list) -> dict:
    result = {}
    for name, value in zip(names, values):
        result[name] = value
    return result


assert dict_from_lists(["a", "b"], [1, 2]) == {"a": 1, "b": 2}
assert dict_from_lists([], []) == {}


# == add_counts, merge_counts
# first: a, one
# second: b, two
# - Add two dictionaries of counts.
# - Sum the counts of {first} and {second} key by key.
# - Merge two dictionaries of numbers; where both have a key, the numbers are added.
# ? Combine two tallies: equal keys have their numbers added.
def add_counts(first: dict, second: dict) -> dict:
    result = dict(first)
    for key, value in second.items():
        result[key] = result.get(key, 0) + value
    return result


assert add_counts({"a": 1}, {"a": 2, "b": 3}) == {"a": 3, "b": 3}
assert add_counts({}, {}) == {}


# == count_items, tally
# items: values, elements
# item: value, element
# counts: result, totals
# - Count how often each item occurs.
# - Return a dictionary from item to its number of occurrences.
# - Count the items of a list in a dictionary.
# - Tally the elements of {items}.
# ? How many times does each of {items} occur?
def count_items(items: list) -> dict:
    counts = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts


def count_items(items: list) -> dict:
    counts = {}
    for item in items:
        if item not in counts:
            counts[item] = 0
        counts[item] += 1
    return counts


assert count_items(["a", "b", "a"]) == {"a": 2, "b": 1}
assert count_items([]) == {}


# == average_by_key, mean_by_key
# pairs: records, entries
# - Average the values of each key.
# - Return the mean of the numbers for each key of (key, number) pairs.
# - Compute the average number for every key in a list of pairs.
# ? From pairs of key and number, give every key its mean.
def average_by_key(pairs: list) -> dict:
    groups = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: sum(values) / len(values) for key, values in groups.items()}


assert average_by_key([("a", 1), ("a", 3), ("b", 4)]) == {"a": 2, "b": 4}
assert average_by_key([]) == {}


# == common_keys, shared_keys
# first: a, one
# second: b, two
# - Return the keys that two dictionaries share.
# - Return a sorted list of the keys that are in both {first} and {second}.
# - List the keys that both dictionaries have, sorted.
# ? Which keys are in both dictionaries? Sorted.
def common_keys(first: dict, second: dict) -> list:
    return sorted(set(first) & set(second))


def common_keys(first: dict, second: dict) -> list:
    return sorted(key for key in first if key in second)


assert common_keys({"b": 1, "a": 2}, {"a": 0, "b": 0, "c": 0}) == ["a", "b"]
assert common_keys({}, {"a": 1}) == []


# == dict_difference, changed_keys
# before: old, first
# after: new, second
# - Return the keys whose values differ between two dictionaries.
# - List, sorted, the keys of both dictionaries that changed.
# - Return the sorted keys that {before} and {after} share with different values.
# ? Which keys that both have got another value? Sorted.
def dict_difference(before: dict, after: dict) -> list:
    return sorted(key for key in before if key in after and before[key] != after[key])


assert dict_difference({"a": 1, "b": 2}, {"a": 1, "b": 3}) == ["b"]
assert dict_difference({"a": 1}, {}) == []


# == map_values, apply_to_values
# mapping: d, data
# function: func, convert
# - Apply a function to every value of a dictionary.
# - Return {mapping} with {function} applied to its values.
# - Keep the keys of {mapping} and replace each value by {function} of it.
# ? Transform all values of {mapping} by {function}.
def map_values(mapping: dict, function) -> dict:
    return {key: function(value) for key, value in mapping.items()}


assert map_values({"a": 1, "b": 2}, lambda n: n * 10) == {"a": 10, "b": 20}
assert map_values({}, str) == {}


# == remove_none_values, drop_none
# mapping: d, data
# - Remove the entries whose value is None.
# - Return {mapping} without keys whose value is None.
# - Drop every entry of {mapping} that is None.
# ? Leave out of {mapping} what has no value, that is None.
def remove_none_values(mapping: dict) -> dict:
    return {key: value for key, value in mapping.items() if value is not None}


assert remove_none_values({"a": None, "b": 0}) == {"b": 0}
assert remove_none_values({}) == {}


# == has_key_path, contains_path
# mapping: data, nested
# path: keys, names
# - Check whether a path of keys exists in nested dictionaries.
# - Return True if {path} leads to a value in {mapping}.
# - Tell whether every key of {path} is there, one inside the other.
# ? Does {path} lead somewhere in the nested dictionaries?
def has_key_path(mapping: dict, path: list) -> bool:
    current = mapping
    for key in path:
        if not isinstance(current, dict) or key not in current:
            return False
        current = current[key]
    return True


assert has_key_path({"a": {"b": None}}, ["a", "b"])
assert not has_key_path({"a": 1}, ["a", "b"])
assert has_key_path({}, [])


# == symmetric_difference, in_one_only
# first: a, left
# second: b, right
# - Return the elements that are in exactly one of two lists, sorted.
# - Sorted elements of {first} or {second}, but not of both.
# - Return a sorted list of what only one of the two lists holds.
# ? What is in one list and not in the other? Sorted.
def symmetric_difference(first: list, second: list) -> list:
    return sorted(set(first) ^ set(second))


assert symmetric_difference([1, 2, 3], [2, 3, 4]) == [1, 4]
assert symmetric_difference([], []) == []


# == are_disjoint, no_common_items
# first: a, left
# second: b, right
# - Check whether two lists have no element in common.
# - Return True if nothing is in both {first} and {second}.
# - Tell whether the two lists are disjoint.
# ? Return True when {first} and {second} share nothing.
def are_disjoint(first: list, second: list) -> bool:
    return not set(first) & set(second)


def are_disjoint(first: list, second: list) -> bool:
    for item in first:
        if item in second:
            return False
    return True


assert are_disjoint([1, 2], [3])
assert not are_disjoint([1, 2], [2])
assert are_disjoint([], [])


# == jaccard, jaccard_similarity
# first: a, left
# second: b, right
# - Return the Jaccard similarity of two sets.
# - Size of the intersection divided by the size of the union; 1.0 for two empty sets.
# - Compute how similar two sets are: shared elements over all elements.
# ? Shared elements of two sets divided by all their elements; 1.0 if both are empty.
def jaccard(first: set, second: set) -> float:
    union = first | second
    if not union:
        return 1.0
    return len(first & second) / len(union)


assert jaccard({1, 2}, {2, 3}) == 1 / 3
assert jaccard(set(), set()) == 1.0
assert jaccard({1}, {1}) == 1.0


# == build_index, inverted_index
# documents: texts, lines
# index: result, places
# - Map each word to the numbers of the documents that contain it.
# - Build an inverted index: word to a sorted list of document numbers.
# - Return, for every word, in which documents it occurs, counted from 0.
# ? For every word, list the places of the documents that have it, from 0.
def build_index(documents: list) -> dict:
    index = {}
    for number, document in enumerate(documents):
        for word in sorted(set(document.split())):
            index.setdefault(word, []).append(number)
    return index


assert build_index(["a b", "b c"]) == {"a": [0], "b": [0, 1], "c": [1]}
assert build_index([]) == {}


# == parse_query, parse_query_string
# query: text, string
# - Parse a query string like a=1&b=2 into a dictionary.
# - Turn key=value pairs joined by & into a dictionary of strings.
# - Return the parameters of a query string as a dictionary.
# ? Read pairs such as a=1&b=2 into a dictionary of strings.
def parse_query(query: str) -> dict:
    result = {}
    for part in query.split("&"):
        if "=" in part:
            name, value = part.split("=", 1)
            result[name] = value
    return result


assert parse_query("a=1&b=2") == {"a": "1", "b": "2"}
assert parse_query("") == {}
assert parse_query("x=a=b") == {"x": "a=b"}


# ==! increment_all
# mapping: d, counts
# amount: step, delta
# ? Return a dictionary with {amount} added to every value of {mapping}.
# ? Raise each value of {mapping} by {amount} in a new dictionary.
def increment_all(mapping: dict, amount: int) -> dict:
    return {key: value + amount for key, value in mapping.items()}


assert increment_all({"a": 1, "b": 2}, 3) == {"a": 4, "b": 5}
assert increment_all({}, 1) == {}


# ==! keys_longer_than
# mapping: d, data
# length: n, limit
# ? Return, sorted, the keys of {mapping} that have more than {length} letters.
# ? List in order the keys of {mapping} longer than {length}.
def keys_longer_than(mapping: dict, length: int) -> list:
    return sorted(key for key in mapping if len(key) > length)


assert keys_longer_than({"pear": 1, "fig": 2, "apple": 3}, 3) == ["apple", "pear"]
assert keys_longer_than({}, 0) == []
