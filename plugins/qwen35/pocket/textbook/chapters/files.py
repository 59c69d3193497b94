"""Files and formats."""

import csv
import hashlib
import json
import os
from pathlib import Path


# == read_text, read_file
# path: filename, name
# - Return the contents of a text file.
# - Read the whole file {path} as text.
# - Open {path} and return its text.
# ? Give the text that the file {path} holds.
def read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


with open("a.txt", "w") as out:
    out.write("one\ntwo\n")
assert read_text("a.txt") == "one\ntwo\n"


# == write_text, save_text
# path: filename, name
# text: content, data
# - Write text to a file.
# - Replace the contents of {path} by {text}.
# - Save {text} in the file {path}.
# ? Put {text} into the file {path}.
def write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


write_text("a.txt", "hello")
with open("a.txt") as source:
    assert source.read() == "hello"


# == count_file_lines, lines_in_file
# path: filename, name
# - Count the lines of a text file.
# - Return the number of lines in the file {path}.
# - How many lines does the file {path} have?
# ? Give the number of lines that the file {path} has.
def count_file_lines(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return sum(1 for _ in file)


def count_file_lines(path: str) -> int:
    count = 0
    with open(path, encoding="utf-8") as file:
        for line in file:
            count += 1
    return count


with open("a.txt", "w") as out:
    out.write("one\ntwo\nthree\n")
assert count_file_lines("a.txt") == 3
with open("b.txt", "w") as out:
    out.write("")
assert count_file_lines("b.txt") == 0


# == read_lines, load_lines
# path: filename, name
# line: row, text
# - Return the lines of a file without their line ends.
# - Read a text file into a list of lines.
# - List the lines of {path}, line ends removed.
# ? Give the lines of the file {path} as a list, without newlines.
def read_lines(path: str) -> list:
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def read_lines(path: str) -> list:
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


with open("a.txt", "w") as out:
    out.write("one\ntwo\n")
assert read_lines("a.txt") == ["one", "two"]


# == append_line, add_line
# path: filename, name
# line: text, message
# - Append a line to a file.
# - Add {line} and a line end to the end of the file {path}.
# - Write one more line at the end of {path}.
# ? Put {line} behind the last line of the file {path}.
def append_line(path: str, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


append_line("log.txt", "one")
append_line("log.txt", "two")
with open("log.txt") as source:
    assert source.read() == "one\ntwo\n"


# == read_config, load_config
# path: filename, name
# - Read a configuration from a JSON file.
# - Load the JSON file {path} as a dictionary.
# - Return the configuration in the JSON file {path}.
# - Read a configuration; a file that is missing gives an empty one.
# ? Give the settings that the JSON file {path} holds.
def read_config(path: str) -> dict:
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    return config


def read_config(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except FileNotFoundError:
        config = {}
    return config


with open("config.json", "w") as out:
    out.write('{"port": 80}')
assert read_config("config.json") == {"port": 80}


# == save_json, write_json
# path: filename, name
# data: value, content
# - Save data as a JSON file.
# - Write {data} to {path} as JSON.
# - Store {data} in the JSON file {path}, indented.
# ? Put {data} into the file {path} in JSON form.
def save_json(path: str, data: dict) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2)


save_json("a.json", {"a": [1, 2]})
with open("a.json") as source:
    assert json.load(source) == {"a": [1, 2]}


# == read_csv, load_csv
# path: filename, name
# - Read a CSV file into a list of dictionaries.
# - Return the rows of a CSV file; its first line names the columns.
# - Load {path} as CSV: one dictionary for each row.
# ? Give each row of the CSV file {path} as a dictionary by column name.
def read_csv(path: str) -> list:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


with open("a.csv", "w") as out:
    out.write("name,age\nAda,36\nAlan,41\n")
assert read_csv("a.csv") == [{"name": "Ada", "age": "36"}, {"name": "Alan", "age": "41"}]


# == write_csv, save_csv
# path: filename, name
# rows: records, table
# row: record, fields
# - Write rows to a CSV file.
# - Save a list of rows as the CSV file {path}.
# - Write {rows} to {path}, separated by commas.
# ? Put the lists in {rows} into the file {path} as CSV.
def write_csv(path: str, rows: list) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for row in rows:
            writer.writerow(row)


write_csv("a.csv", [["a", "b"], [1, 2]])
with open("a.csv") as source:
    assert source.read().split() == ["a,b", "1,2"]


# == list_files, files_with_suffix
# directory: folder, path
# suffix: extension, ending
# - List the files of a directory, sorted.
# - Return the sorted names of the files in {directory} that end with {suffix}.
# - List the files in {directory}, only those with {suffix} if it is given.
# ? Give the names of the files in {directory} in order, of one {suffix} if asked.
def list_files(directory: str, suffix: str = "") -> list:
    names = []
    for name in sorted(os.listdir(directory)):
        if os.path.isfile(os.path.join(directory, name)) and name.endswith(suffix):
            names.append(name)
    return names


def list_files(directory: str, suffix: str = "") -> list:
    files = [item for item in Path(directory).iterdir() if item.is_file()]
    return sorted(item.name for item in files if item.name.endswith(suffix))


os.mkdir("folder")
for made in ("b.txt", "a.py"):
    open("folder/" + made, "w").close()
assert list_files("folder", ".txt") == ["b.txt"]
assert list_files("folder", "") == ["a.py", "b.txt"]


# == file_size, size_of_file
# path: filename, name
# - Return the size of a file in bytes.
# - How many bytes does the file {path} have?
# - Return the number of bytes of {path}.
# ? Give the length of the file {path} in bytes.
def file_size(path: str) -> int:
    return os.path.getsize(path)


def file_size(path: str) -> int:
    return Path(path).stat().st_size


with open("a.txt", "w") as out:
    out.write("12345")
assert file_size("a.txt") == 5


# == copy_file, duplicate_file
# source: origin, old
# target: destination, new
# - Copy a file.
# - Copy the contents of {source} to {target}.
# - Write the bytes of the file {source} to {target}.
# ? Make the file {target} with what is in {source}.
def copy_file(source: str, target: str) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        writer.write(reader.read())


with open("a.txt", "w") as out:
    out.write("text")
copy_file("a.txt", "b.txt")
with open("b.txt") as copied:
    assert copied.read() == "text"


# == file_extension, get_extension
# path: filename, name
# - Return the extension of a file name, with its dot.
# - Return the suffix of {path} such as ".txt", or an empty string.
# - Get the extension of {path}, dot included.
# ? Give what stands from the last dot on in the file name {path}.
def file_extension(path: str) -> str:
    return os.path.splitext(path)[1]


def file_extension(path: str) -> str:
    return Path(path).suffix


assert file_extension("a/b.txt") == ".txt"
assert file_extension("README") == ""
assert file_extension("x.tar.gz") == ".gz"


# == change_extension, replace_extension
# path: filename, name
# extension: suffix, ending
# - Return a path with another extension.
# - Replace the extension of {path} by {extension}, which begins with a dot.
# - Give {path} the extension {extension}.
# ? Put {extension} in the place of the ending of {path}.
def change_extension(path: str, extension: str) -> str:
    return os.path.splitext(path)[0] + extension


assert change_extension("a.txt", ".md") == "a.md"
assert change_extension("a/b", ".py") == "a/b.py"


# == file_hash, sha256_of_file
# path: filename, name
# - Return the SHA-256 of a file as hexadecimal text.
# - Hash the contents of {path} with SHA-256.
# - Compute the SHA-256 digest of the file {path} in hexadecimal.
# ? Give the SHA-256 sum of the file {path} in hexadecimal.
def file_hash(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        digest.update(file.read())
    return digest.hexdigest()


def file_hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


with open("a.txt", "w") as out:
    out.write("")
assert file_hash("a.txt").startswith("e3b0c44298fc1c14")
assert len(file_hash("a.txt")) == 64


# == find_in_file, lines_containing
# path: filename, name
# text: word, pattern
# - Return the numbers of the lines that contain a text.
# - List the line numbers, from 1, of {path} where {text} occurs.
# - Find {text} in the file {path}; return line numbers from 1.
# ? On which lines of {path}, counted from 1, does {text} stand?
def find_in_file(path: str, text: str) -> list:
    with open(path, encoding="utf-8") as file:
        return [number for number, line in enumerate(file, 1) if text in line]


def find_in_file(path: str, text: str) -> list:
    numbers = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if text in line:
                numbers.append(number)
    return numbers


with open("a.txt", "w") as out:
    out.write("one\ntwo\nfourtwo\n")
assert find_in_file("a.txt", "two") == [2, 3]
assert find_in_file("a.txt", "six") == []


# == longest_line_in_file, longest_file_line
# path: filename, name
# - Return the longest line of a file without its line end.
# - Find the longest line in {path}; an empty file gives an empty string.
# - Return the line of {path} with the most characters.
# ? Which line of the file {path} is the longest? Without its line end.
def longest_line_in_file(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return max((line.rstrip("\n") for line in file), key=len, default="")


def longest_line_in_file(path: str) -> str:
    longest = ""
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.rstrip("\n")
            if len(line) > len(longest):
                longest = line
    return longest


with open("a.txt", "w") as out:
    out.write("a\nlonger\nbb\n")
assert longest_line_in_file("a.txt") == "longer"


# == parse_key_values, parse_settings
# text: content, data
# line: row, entry
# - Parse lines of the form key = value into a dictionary.
# - Read key = value lines; blank lines and lines with # are skipped.
# - Return a dictionary from text with one key = value a line, comments left out.
# ? Read settings such as a = 1, one a line, and skip comments with #.
def parse_key_values(text: str) -> dict:
    result = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, _, value = line.partition("=")
        result[key.strip()] = value.strip()
    return result


assert parse_key_values("# c\na = 1\n\nb=two\n") == {"a": "1", "b": "two"}
assert parse_key_values("") == {}


# == to_csv_line, join_csv
# fields: values, cells
# - Join values into one line of CSV.
# - Return {fields} separated by commas.
# - Make a line of comma-separated values of {fields}.
# ? Write {fields} as one line with commas between them.
def to_csv_line(fields: list) -> str:
    return ",".join(str(field) for field in fields)


assert to_csv_line([1, "a", 2.5]) == "1,a,2.5"
assert to_csv_line([]) == ""


# == total_size, directory_size
# directory: folder, path
# total: size, result
# - Add up the sizes of all files below a directory.
# - Return how many bytes the files in {directory} and its folders have.
# - Compute the size of {directory} with everything in it, in bytes.
# ? How many bytes do all files below {directory} take?
def total_size(directory: str) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            total += os.path.getsize(os.path.join(folder, name))
    return total


os.makedirs("folder/inner")
for made in ("folder/a.txt", "folder/inner/b.txt"):
    with open(made, "w") as out:
        out.write("abc")
assert total_size("folder") == 6


# == human_size, format_size
# size: count, n
# unit: name, suffix
# - Format a number of bytes for people.
# - Return {size} in B, KB, MB, GB or TB with one decimal, counted in 1024.
# - Turn a number of bytes into text such as 1.5 KB.
# ? Write {size} bytes as text with one decimal and a unit of 1024: 1.5 KB.
def human_size(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


assert human_size(1536) == "1.5 KB"
assert human_size(10) == "10.0 B"
assert human_size(1024 * 1024) == "1.0 MB"


# ==! merge_files
# paths: names, sources
# target: output, destination
# ? Write the contents of all files in {paths}, one after the other, to {target}.
# ? Join the files in {paths} into the file {target}.
def merge_files(paths: list, target: str) -> None:
    with open(target, "w", encoding="utf-8") as writer:
        for path in paths:
            with open(path, encoding="utf-8") as reader:
                writer.write(reader.read())


for made in ("a.txt", "b.txt"):
    with open(made, "w") as out:
        out.write(made + "\n")
merge_files(["a.txt", "b.txt"], "c.txt")
with open("c.txt") as joined:
    assert joined.read() == "a.txt\nb.txt\n"
