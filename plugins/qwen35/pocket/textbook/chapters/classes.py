"""Classes."""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum


# == Stack
# .items: values, elements
# item: value, element
# - A last-in, first-out collection.
# - A last-in, first-out stack with push, pop, peek and is_empty.
# - A simple stack.
# - A stack: push adds an item, pop takes the newest one away.
# - Stack of items with push, pop, peek, is_empty and len.
# ? A LIFO container with push, pop, peek and is_empty.
# ? A pile of items: push, pop, peek, is_empty.
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def peek(self):
        if not self.items:
            raise IndexError("peek at an empty stack")
        return self.items[-1]

    def is_empty(self) -> bool:
        return not self.items

    def __len__(self) -> int:
        return len(self.items)


stack = Stack()
assert stack.is_empty()
stack.push(1)
stack.push(2)
assert stack.peek() == 2
assert stack.pop() == 2
assert stack.pop() == 1
assert stack.is_empty()


# == Queue
# .items: values, elements
# item: value, element
# - A first-in, first-out collection.
# - A first-in, first-out queue with enqueue, dequeue and is_empty.
# - A simple queue.
# - A queue: enqueue adds an item, dequeue takes the oldest one away.
# ? A FIFO container with enqueue, dequeue and is_empty.
# ? A waiting line: enqueue, dequeue, is_empty.
class Queue:
    def __init__(self):
        self.items = []

    def enqueue(self, item):
        self.items.append(item)

    def dequeue(self):
        if not self.items:
            raise IndexError("dequeue from an empty queue")
        return self.items.pop(0)

    def is_empty(self) -> bool:
        return not self.items

    def __len__(self) -> int:
        return len(self.items)


queue = Queue()
assert queue.is_empty()
queue.enqueue("a")
queue.enqueue("b")
assert queue.dequeue() == "a"
assert queue.dequeue() == "b"
assert queue.is_empty()


# == Point
# - A point in the plane.
# - A point with coordinates x and y.
# - A point in the plane with x, y and distance_to another point.
# - Two coordinates, and distance_to another point.
# ? A place in the plane, with x, y and distance_to.
# ? A 2D point with x and y, and a method distance_to.
@dataclass
class Point:
    x: float
    y: float

    def distance_to(self, other: "Point") -> float:
        return ((self.x - other.x) ** 2 + (self.y - other.y) ** 2) ** 0.5

    def __add__(self, other: "Point") -> "Point":
        return Point(self.x + other.x, self.y + other.y)


@dataclass
class Point:
    x: float
    y: float

    def distance_to(self, other: "Point") -> float:
        dx = self.x - other.x
        dy = self.y - other.y
        return (dx * dx + dy * dy) ** 0.5

    def move(self, dx: float, dy: float) -> "Point":
        return Point(self.x + dx, self.y + dy)


assert Point(1, 2) == Point(1, 2)
assert Point(0, 0).distance_to(Point(3, 4)) == 5


# == Vector, Vector2D
# - A vector in the plane.
# - A two-dimensional vector with addition, subtraction and scaling.
# - A vector with x and y that can be added, subtracted, multiplied and compared.
# - A 2D vector with operators.
# ? A plane vector with x and y: add, subtract, multiply by a number, compare.
class Vector:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)

    def __sub__(self, other):
        return Vector(self.x - other.x, self.y - other.y)

    def __mul__(self, factor):
        return Vector(self.x * factor, self.y * factor)

    def __eq__(self, other):
        return self.x == other.x and self.y == other.y

    def __repr__(self):
        return f"Vector({self.x}, {self.y})"


assert Vector(1, 2) + Vector(3, 4) == Vector(4, 6)
assert Vector(3, 4) - Vector(1, 2) == Vector(2, 2)
assert Vector(1, 2) * 3 == Vector(3, 6)


# == Counter
# .total: count, value
# amount: n, step
# - A counter that starts at zero.
# - Counts events: add raises the total, reset sets it to zero.
# - A counter with add, reset and value.
# ? A tally that starts at zero, with add, reset and value.
class Counter:
    def __init__(self):
        self.total = 0

    def add(self, amount=1):
        self.total += amount
        return self.total

    def reset(self):
        self.total = 0


counter = Counter()
counter.add(2)
assert counter.add(3) == 5
counter.reset()
assert counter.add() == 1


# == BankAccount, Account
# amount: value, money
# - A bank account with deposit, withdraw and a balance.
# - An account whose balance never becomes negative.
# - A bank account: deposit adds money, withdraw takes it, balance is what is left.
# - Keeps a balance; withdraw raises ValueError if there is not enough money.
# ? An account at a bank with balance, deposit and withdraw; too much is a ValueError.
class BankAccount:
    def __init__(self, balance=0):
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance


account = BankAccount()
account.deposit(100)
account.withdraw(30)
assert account.balance == 70
try:
    account.withdraw(500)
except ValueError:
    pass
else:
    raise AssertionError("too much was withdrawn")


# == Node, ListNode
# value: data, item
# .value: data, item
# following: successor, other
# - A node of a linked list.
# - A list node with a value and the next node.
# - One link of a linked list: value and next.
# ? An element of a linked list, with value and next.
class Node:
    def __init__(self, value, following=None):
        self.value = value
        self.next = following

    def __repr__(self):
        return f"Node({self.value!r})"


node = Node(1, Node(2))
assert node.next is not None
assert node.next.next is None


# == LinkedList
# value: item, data
# node: current
# - A singly linked list.
# - A linked list with append, prepend and to_list.
# - A chain of nodes with append, prepend, to_list and len.
# - A singly linked list: append at the end, prepend at the front, to_list.
# ? A list of linked nodes with append, prepend, to_list and len.
class ListItem:
    def __init__(self, value):
        self.value = value
        self.next = None


class LinkedList:
    def __init__(self):
        self.head = None
        self.size = 0

    def append(self, value):
        item = ListItem(value)
        if self.head is None:
            self.head = item
        else:
            node = self.head
            while node.next is not None:
                node = node.next
            node.next = item
        self.size += 1

    def prepend(self, value):
        item = ListItem(value)
        item.next = self.head
        self.head = item
        self.size += 1

    def to_list(self):
        values = []
        node = self.head
        while node is not None:
            values.append(node.value)
            node = node.next
        return values

    def __len__(self):
        return self.size


class LinkedList:
    def __init__(self):
        self.head = None

    def append(self, value):
        if self.head is None:
            self.head = [value, None]
            return
        node = self.head
        while node[1] is not None:
            node = node[1]
        node[1] = [value, None]

    def prepend(self, value):
        self.head = [value, self.head]

    def to_list(self):
        values = []
        node = self.head
        while node is not None:
            values.append(node[0])
            node = node[1]
        return values

    def __len__(self):
        return len(self.to_list())


numbers = LinkedList()
assert numbers.to_list() == []
numbers.append(2)
numbers.append(3)
numbers.prepend(1)
assert numbers.to_list() == [1, 2, 3]
assert len(numbers) == 3


# == BinarySearchTree, SearchTree
# value: item, number
# - A binary search tree.
# - A binary search tree with insert, contains and in_order.
# - A sorted tree: insert adds a value, contains finds it, in_order lists all.
# ? A search tree of values with insert, contains and in_order.
class BinarySearchTree:
    def __init__(self):
        self.root = None

    def insert(self, value):
        if self.root is None:
            self.root = [value, None, None]
            return
        node = self.root
        while True:
            side = 1 if value < node[0] else 2
            if node[side] is None:
                node[side] = [value, None, None]
                return
            node = node[side]

    def contains(self, value):
        node = self.root
        while node is not None:
            if value == node[0]:
                return True
            node = node[1] if value < node[0] else node[2]
        return False

    def in_order(self):
        return self._walk(self.root)

    def _walk(self, node):
        if node is None:
            return []
        return self._walk(node[1]) + [node[0]] + self._walk(node[2])


tree = BinarySearchTree()
for number in (5, 2, 8, 1):
    tree.insert(number)
assert tree.contains(8)
assert not tree.contains(7)
assert tree.in_order() == [1, 2, 5, 8]


# == Rectangle
# - A rectangle with a width and a height.
# - A rectangle that knows its area and perimeter.
# - A rectangle with methods area, perimeter and is_square.
# ? A rectangle made of width and height, with area, perimeter and is_square.
@dataclass
class Rectangle:
    width: float
    height: float

    def area(self) -> float:
        return self.width * self.height

    def perimeter(self) -> float:
        return 2 * (self.width + self.height)

    def is_square(self) -> bool:
        return self.width == self.height


class Rectangle:
    def __init__(self, width: float, height: float):
        self.width = width
        self.height = height

    def area(self) -> float:
        return self.width * self.height

    def perimeter(self) -> float:
        return 2 * (self.width + self.height)

    def is_square(self) -> bool:
        return self.width == self.height


assert Rectangle(3, 4).area() == 12
assert Rectangle(3, 4).perimeter() == 14
assert Rectangle(2, 2).is_square()
assert not Rectangle(2, 3).is_square()


# == Circle
# - A circle with a radius.
# - A circle that knows its area and circumference.
# - A circle with methods area, circumference and contains.
# ? A circle around the origin, with area, circumference and contains(x, y).
class Circle:
    def __init__(self, radius: float):
        self.radius = radius

    def area(self) -> float:
        return 3.141592653589793 * self.radius**2

    def circumference(self) -> float:
        return 2 * 3.141592653589793 * self.radius

    def contains(self, x: float, y: float) -> bool:
        return x * x + y * y <= self.radius**2


assert abs(Circle(1).area() - 3.14159) < 1e-4
assert abs(Circle(2).circumference() - 12.56637) < 1e-4
assert Circle(5).contains(3, 4)
assert not Circle(1).contains(1, 1)


# == Person
# - A person with a name and an age.
# - Someone with a name and an age, who can greet and have a birthday.
# - A person with greet, birthday and is_adult.
# ? A human being with name and age: greet, birthday, is_adult.
class Person:
    def __init__(self, name: str, age: int):
        self.name = name
        self.age = age

    def greet(self) -> str:
        return f"Hello, my name is {self.name}."

    def birthday(self) -> int:
        self.age += 1
        return self.age

    def is_adult(self) -> bool:
        return self.age >= 18


person = Person("Ada", 17)
assert person.name == "Ada"
assert "Ada" in person.greet()
assert not person.is_adult()
person.birthday()
assert person.age == 18
assert person.is_adult()


# == Animal
# - An animal with a name that can speak.
# - Base class of animals; every kind speaks in its own way.
# - An animal: speak returns what it says.
# ? A living thing with a name, whose speak raises NotImplementedError.
class Animal:
    def __init__(self, name: str):
        self.name = name

    def speak(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.name


animal = Animal("Rex")
assert str(animal) == "Rex"
try:
    animal.speak()
except NotImplementedError:
    pass
else:
    raise AssertionError("an animal of no kind spoke")


# == Temperature
# - A temperature in degrees Celsius that can be read in Fahrenheit.
# - Keeps degrees Celsius; the property fahrenheit converts them.
# - A temperature with the properties celsius and fahrenheit.
# ? Degrees Celsius, and the property fahrenheit that converts them.
class Temperature:
    def __init__(self, celsius: float):
        self.celsius = celsius

    @property
    def fahrenheit(self) -> float:
        return self.celsius * 9 / 5 + 32


assert Temperature(100).fahrenheit == 212
assert Temperature(0).fahrenheit == 32


# == Color
# - The three primary colours.
# - An enumeration of colours.
# - Colours by name: RED, GREEN and BLUE.
# ? An enumeration with RED, GREEN and BLUE.
class Color(Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


assert Color.RED.value == 1
assert Color(2) is Color.GREEN
assert len(list(Color)) == 3


# == Weekday
# - The days of the week.
# - An enumeration of the days of the week, Monday first.
# - Days of the week; is_weekend tells whether one is free.
# ? The seven days as an enumeration from MONDAY = 1, with is_weekend.
class Weekday(Enum):
    MONDAY = 1
    TUESDAY = 2
    WEDNESDAY = 3
    THURSDAY = 4
    FRIDAY = 5
    SATURDAY = 6
    SUNDAY = 7

    def is_weekend(self) -> bool:
        return self.value >= 6


assert Weekday.SUNDAY.is_weekend()
assert not Weekday.FRIDAY.is_weekend()
assert Weekday(1) is Weekday.MONDAY


# == LRUCache, LeastRecentlyUsed
# value: item
# - A cache that forgets the least recently used entry.
# - A cache of limited capacity with get and put.
# - Keeps the most recently used entries; get returns None for what is missing.
# ? A least-recently-used cache with a capacity, get and put; missing keys give None.
class LRUCache:
    def __init__(self, capacity: int):
        self.capacity = capacity
        self.entries = OrderedDict()

    def get(self, key):
        if key not in self.entries:
            return None
        self.entries.move_to_end(key)
        return self.entries[key]

    def put(self, key, value):
        self.entries[key] = value
        self.entries.move_to_end(key)
        if len(self.entries) > self.capacity:
            self.entries.popitem(last=False)


cache = LRUCache(2)
cache.put("a", 1)
cache.put("b", 2)
assert cache.get("a") == 1
cache.put("c", 3)
assert cache.get("b") is None
assert cache.get("c") == 3


# == Inventory
# amount: count, quantity
# name: item, product
# - An inventory of goods.
# - Keeps how many of each item there are, with add, remove and count.
# - A stock of items: add, remove and count.
# - An inventory with add, remove and count; too many removed is a ValueError.
# ? Goods in stock by name, with add, remove (ValueError if too many) and count.
class Inventory:
    def __init__(self):
        self.stock = {}

    def add(self, name, amount=1):
        self.stock[name] = self.stock.get(name, 0) + amount

    def remove(self, name, amount=1):
        if self.stock.get(name, 0) < amount:
            raise ValueError(f"not enough {name}")
        self.stock[name] -= amount

    def count(self, name):
        return self.stock.get(name, 0)


inventory = Inventory()
inventory.add("apple", 3)
inventory.remove("apple")
assert inventory.count("apple") == 2
assert inventory.count("pear") == 0
try:
    inventory.remove("pear")
except ValueError:
    pass
else:
    raise AssertionError("a pear was removed")


# == ShoppingCart, Cart
# price: cost
# - A shopping cart.
# - A cart of items with prices; total adds them up.
# - A shopping cart with add, remove and total.
# ? A cart for shopping: add(name, price), remove(name) and total().
class ShoppingCart:
    def __init__(self):
        self.items = []

    def add(self, name, price, quantity=1):
        self.items.append((name, price, quantity))

    def remove(self, name):
        self.items = [item for item in self.items if item[0] != name]

    def total(self):
        return sum(price * quantity for _, price, quantity in self.items)


cart = ShoppingCart()
cart.add("tea", 3)
cart.add("milk", 2)
assert cart.total() == 5
cart.remove("tea")
assert cart.total() == 2


# == Timer, Countdown
# - A timer that counts down.
# - Counts down from a number of seconds; tick takes one away.
# - A countdown with tick and is_done.
# ? A countdown of seconds, with tick and is_done.
class Timer:
    def __init__(self, seconds: int):
        self.remaining = seconds

    def tick(self) -> int:
        if self.remaining > 0:
            self.remaining -= 1
        return self.remaining

    def is_done(self) -> bool:
        return self.remaining == 0


timer = Timer(2)
assert timer.tick() == 1
assert not timer.is_done()
timer.tick()
timer.tick()
assert timer.is_done()


# == Matrix
# - A matrix of numbers.
# - A matrix with addition, transpose and shape.
# - A rectangular table of numbers that can be added and transposed.
# ? Rows of numbers with shape(), transpose(), addition and equality.
class Matrix:
    def __init__(self, rows):
        self.rows = [list(row) for row in rows]

    def shape(self):
        return len(self.rows), len(self.rows[0])

    def transpose(self):
        return Matrix(zip(*self.rows))

    def __add__(self, other):
        pairs = zip(self.rows, other.rows)
        return Matrix([[a + b for a, b in zip(x, y)] for x, y in pairs])

    def __eq__(self, other):
        return self.rows == other.rows


matrix = Matrix([[1, 2, 3], [4, 5, 6]])
assert matrix.shape() == (2, 3)
assert matrix.transpose() == Matrix([[1, 4], [2, 5], [3, 6]])
assert matrix + matrix == Matrix([[2, 4, 6], [8, 10, 12]])


# == Fraction, Ratio
# - A fraction in lowest terms.
# - A fraction with addition and multiplication.
# - A number written as numerator and denominator, always reduced.
# ? A reduced fraction with numerator and denominator, + and *.
class Fraction:
    def __init__(self, numerator: int, denominator: int):
        a, b = numerator, denominator
        while b:
            a, b = b, a % b
        self.numerator = numerator // a
        self.denominator = denominator // a

    def __add__(self, other: "Fraction") -> "Fraction":
        top = self.numerator * other.denominator + other.numerator * self.denominator
        return Fraction(top, self.denominator * other.denominator)

    def __mul__(self, other: "Fraction") -> "Fraction":
        top = self.numerator * other.numerator
        return Fraction(top, self.denominator * other.denominator)

    def __repr__(self) -> str:
        return f"{self.numerator}/{self.denominator}"


half, third = Fraction(2, 4), Fraction(1, 3)
assert (half.numerator, half.denominator) == (1, 2)
total = half + third
assert (total.numerator, total.denominator) == (5, 6)
product = half * third
assert (product.numerator, product.denominator) == (1, 6)


# == Graph
# a: start, source
# b: end, target
# - An undirected graph.
# - An undirected graph with add_edge, neighbors and has_edge.
# - A graph that keeps the neighbours of each node.
# ? Nodes joined by edges without direction: add_edge, neighbors, has_edge.
class Graph:
    def __init__(self):
        self.edges = {}

    def add_edge(self, a, b):
        self.edges.setdefault(a, set()).add(b)
        self.edges.setdefault(b, set()).add(a)

    def neighbors(self, node):
        return sorted(self.edges.get(node, ()))

    def has_edge(self, a, b):
        return b in self.edges.get(a, ())


graph = Graph()
graph.add_edge("a", "b")
graph.add_edge("a", "c")
assert graph.neighbors("a") == ["b", "c"]
assert graph.has_edge("b", "a")
assert not graph.has_edge("b", "c")


# == PriorityQueue
# - A priority queue.
# - A queue whose pop returns the item with the smallest priority.
# - A priority queue with push, pop and is_empty; the smallest priority comes first.
# ? A queue ordered by priority, smallest first: push(priority, item), pop, is_empty.
class PriorityQueue:
    def __init__(self):
        self.entries = []

    def push(self, priority, item):
        self.entries.append((priority, item))
        self.entries.sort(key=lambda entry: entry[0])

    def pop(self):
        if not self.entries:
            raise IndexError("pop from an empty queue")
        return self.entries.pop(0)[1]

    def is_empty(self):
        return not self.entries


queue = PriorityQueue()
queue.push(2, "b")
queue.push(1, "a")
assert queue.pop() == "a"
assert queue.pop() == "b"
assert queue.is_empty()


# == Deque, DoubleEndedQueue
# item: value, element
# - A double-ended queue.
# - A queue with append, append_left, pop and pop_left.
# - A sequence that grows and shrinks at both ends.
# ? A queue open at both ends: append, append_left, pop, pop_left.
class Deque:
    def __init__(self):
        self.items = []

    def append(self, item):
        self.items.append(item)

    def append_left(self, item):
        self.items.insert(0, item)

    def pop(self):
        return self.items.pop()

    def pop_left(self):
        return self.items.pop(0)

    def __len__(self):
        return len(self.items)


deque = Deque()
deque.append(2)
deque.append(3)
deque.append_left(1)
assert deque.pop_left() == 1
assert deque.pop() == 3
assert len(deque) == 1


# == Student
# grade: mark, score
# .grades: marks, scores
# - A student with a name and grades.
# - A student: add_grade keeps a grade, average is their mean.
# - Keeps the grades of a student, with add_grade and average.
# ? Name and grades of a student: add_grade, average (0.0 without grades).
class Student:
    def __init__(self, name: str):
        self.name = name
        self.grades = []

    def add_grade(self, grade: float):
        self.grades.append(grade)

    def average(self) -> float:
        if not self.grades:
            return 0.0
        return sum(self.grades) / len(self.grades)


student = Student("Grace")
assert student.average() == 0.0
student.add_grade(80)
student.add_grade(90)
assert student.average() == 85


# == Book
# - A book with a title, an author and a number of pages.
# - A book: title, author and pages.
# - What a library knows of a book, with is_long and describe.
# ? Title, author and pages of a book; is_long means more than 300 pages.
@dataclass
class Book:
    title: str
    author: str
    pages: int

    def is_long(self) -> bool:
        return self.pages > 300

    def describe(self) -> str:
        return f"{self.title} by {self.author}"


book = Book("Emma", "Jane Austen", 474)
assert book.is_long()
assert book.describe() == "Emma by Jane Austen"
assert not Book("Notes", "A", 20).is_long()


# == Library
# title: name
# - A library that lends books.
# - A library with add, lend and give_back.
# - Keeps which books are there; lend returns False for a book that is not.
# ? Books that can be lent: add, lend (True or False) and give_back.
class Library:
    def __init__(self):
        self.available = set()
        self.lent = set()

    def add(self, title):
        self.available.add(title)

    def lend(self, title):
        if title not in self.available:
            return False
        self.available.remove(title)
        self.lent.add(title)
        return True

    def give_back(self, title):
        if title in self.lent:
            self.lent.remove(title)
            self.available.add(title)


library = Library()
library.add("Emma")
assert library.lend("Emma") is True
assert library.lend("Emma") is False
library.give_back("Emma")
assert library.lend("Emma") is True


# == TodoList, TaskList
# task: text, item
# - A list of things to do.
# - A to-do list with add, complete and pending.
# - Keeps tasks; complete marks one as done and pending lists the others.
# ? Things to do, in order: add, complete and pending.
class TodoList:
    def __init__(self):
        self.tasks = {}

    def add(self, task):
        self.tasks[task] = False

    def complete(self, task):
        if task not in self.tasks:
            raise KeyError(task)
        self.tasks[task] = True

    def pending(self):
        return [task for task, done in self.tasks.items() if not done]


todo = TodoList()
todo.add("read")
todo.add("write")
todo.complete("read")
assert todo.pending() == ["write"]


# == Singleton
# - A class of which there is only one instance.
# - Every call returns the same instance.
# - A singleton.
# ? A class whose calls all give one and the same object.
class Singleton:
    _instance = None

    def __new__(cls):
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance


assert Singleton() is Singleton()


# == EventEmitter, EventBus
# handler: callback, listener
# event: name, topic
# - Calls handlers when events happen.
# - An event emitter with on and emit.
# - Registers handlers by event with on, and calls them with emit.
# ? Handlers by event name: on registers one, emit calls them in order.
class EventEmitter:
    def __init__(self):
        self.handlers = {}

    def on(self, event, handler):
        self.handlers.setdefault(event, []).append(handler)

    def emit(self, event, *args):
        for handler in self.handlers.get(event, []):
            handler(*args)


heard = []
emitter = EventEmitter()
emitter.on("data", heard.append)
emitter.emit("data", 1)
emitter.emit("other", 2)
assert heard == [1]


# == Polynomial
# - A polynomial with coefficients from the lowest power up.
# - A polynomial that can be evaluated and added.
# - Coefficients of a polynomial, lowest power first, with evaluate and degree.
# ? A polynomial by its coefficients, constant first: evaluate(x) and degree().
class Polynomial:
    def __init__(self, coefficients):
        self.coefficients = list(coefficients)

    def degree(self):
        return len(self.coefficients) - 1

    def evaluate(self, x):
        result = 0
        for coefficient in reversed(self.coefficients):
            result = result * x + coefficient
        return result


polynomial = Polynomial([1, 0, 2])
assert polynomial.degree() == 2
assert polynomial.evaluate(3) == 19
assert polynomial.evaluate(0) == 1


# ==! Money
# ? An amount of money in cents with a currency; adding two currencies is a ValueError.
# ? Money as cents and currency with +, where other currencies are a ValueError.
@dataclass
class Money:
    cents: int
    currency: str

    def __add__(self, other: "Money") -> "Money":
        if self.currency != other.currency:
            raise ValueError("other currency")
        return Money(self.cents + other.cents, self.currency)

    def is_zero(self) -> bool:
        return self.cents == 0


assert Money(100, "EUR") + Money(50, "EUR") == Money(150, "EUR")
try:
    Money(1, "EUR") + Money(1, "USD")
except ValueError:
    pass
else:
    raise AssertionError("two currencies were added")


# == Die, Dice
# .sides: faces
# - A die that can be rolled.
# - A die with a number of sides; roll takes a random generator.
# - A die: roll(random) returns a number from 1 to its sides.
# ? A die with sides; roll(random) gives 1 up to the number of sides.
class Die:
    def __init__(self, sides: int = 6):
        self.sides = sides

    def roll(self, random) -> int:
        return random.randint(1, self.sides)


class Highest:
    def randint(self, low, high):
        return high


assert Die().roll(Highest()) == 6
assert Die(20).roll(Highest()) == 20


# == Logger
# message: text, line
# .lines: messages, records
# - Keeps messages in memory.
# - A logger with info, error and a list of lines.
# - Collects messages with their level: info and error.
# ? A logger that keeps "INFO: text" and "ERROR: text", with info and error, in order.
class Logger:
    def __init__(self):
        self.lines = []

    def log(self, level: str, message: str):
        self.lines.append(f"{level}: {message}")

    def info(self, message: str):
        self.log("INFO", message)

    def error(self, message: str):
        self.log("ERROR", message)


logger = Logger()
logger.info("started")
logger.error("failed")


# == Car
# - A car with a speed.
# - A car that can accelerate and brake.
# - A car: accelerate and brake change its speed, which is never negative.
# ? A car with speed 0 at first; accelerate(amount), brake(amount), never below 0.
class Car:
    def __init__(self, brand: str = ""):
        self.brand = brand
        self.speed = 0

    def accelerate(self, amount: int):
        self.speed += amount

    def brake(self, amount: int):
        self.speed = max(0, self.speed - amount)


car = Car()
car.accelerate(30)
car.brake(10)
assert car.speed == 20
car.brake(50)
assert car.speed == 0


# == Tree, TreeNode
# child: node
# - A tree of values.
# - A tree node with a value and children.
# - A tree with add, depth and count.
# ? A value with children below it: add(value), depth() and count().
class Tree:
    def __init__(self, value):
        self.value = value
        self.children = []

    def add(self, value):
        child = Tree(value)
        self.children.append(child)
        return child

    def depth(self):
        return 1 + max((child.depth() for child in self.children), default=0)

    def count(self):
        return 1 + sum(child.count() for child in self.children)


tree = Tree("root")
branch = tree.add("branch")
branch.add("leaf")
tree.add("other")
assert tree.depth() == 3
assert tree.count() == 4


# == Trie, PrefixTree
# word: text
# letter: character, c
# - A tree of words by their letters.
# - A trie with insert, contains and starts_with.
# - A prefix tree: insert words, ask contains and starts_with.
# ? A tree of prefixes with insert, contains and starts_with.
class Trie:
    def __init__(self):
        self.root = {}

    def insert(self, word):
        node = self.root
        for letter in word:
            node = node.setdefault(letter, {})
        node["end"] = True

    def _find(self, prefix):
        node = self.root
        for letter in prefix:
            if letter not in node:
                return None
            node = node[letter]
        return node

    def contains(self, word):
        node = self._find(word)
        return node is not None and "end" in node

    def starts_with(self, prefix):
        return self._find(prefix) is not None


trie = Trie()
trie.insert("car")
assert trie.contains("car")
assert not trie.contains("ca")
assert trie.starts_with("ca")
assert not trie.starts_with("b")


# == UnionFind, DisjointSet
# - Disjoint sets with union and find.
# - A union-find structure over the numbers below n.
# - Keeps disjoint sets: union joins two, connected asks for one.
# ? Disjoint sets of the numbers below n: find, union and connected.
class UnionFind:
    def __init__(self, n: int):
        self.parent = list(range(n))

    def find(self, x: int) -> int:
        while self.parent[x] != x:
            self.parent[x] = self.parent[self.parent[x]]
            x = self.parent[x]
        return x

    def union(self, x: int, y: int):
        self.parent[self.find(x)] = self.find(y)

    def connected(self, x: int, y: int) -> bool:
        return self.find(x) == self.find(y)


sets = UnionFind(4)
sets.union(0, 1)
assert sets.connected(0, 1)
assert not sets.connected(0, 2)
sets.union(1, 2)
assert sets.connected(0, 2)
