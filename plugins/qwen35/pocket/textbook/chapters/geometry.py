"""Geometry and conversions."""

import math


# == circle_area, area_of_circle, compute_circle_area
# radius: r, rad
# - Return the area of a circle with the given radius.
# - Compute the area of a circle from its radius.
# - Calculate how large the area of a circle of this radius is.
# - Return pi times the square of {radius}.
# - Find the area of a circle whose radius is {radius}.
# ? Give the area inside a circle of radius {radius}.
# ? How much surface does a disc of radius {radius} cover?
def circle_area(radius: float) -> float:
    return math.pi * radius**2


def circle_area(radius: float) -> float:
    return math.pi * radius * radius


assert circle_area(0) == 0.0
assert round(circle_area(1), 4) == 3.1416
assert round(circle_area(2), 4) == 12.5664


# == circle_circumference, circumference, circle_perimeter
# radius: r, rad
# - Return the circumference of a circle with the given radius.
# - Compute the circumference of a circle from its radius.
# - Calculate how long the edge of a circle of radius {radius} is.
# - Return two times pi times {radius}.
# - Find the perimeter of a circle whose radius is {radius}.
# ? How far is it around a circle of radius {radius}?
# ? Give the length of the line around a disc of radius {radius}.
def circle_circumference(radius: float) -> float:
    return 2 * math.pi * radius


assert circle_circumference(0) == 0.0
assert round(circle_circumference(1), 4) == 6.2832
assert round(circle_circumference(2.5), 4) == 15.708


# == rectangle_area, area_of_rectangle, calculate_rectangle_area
# width: w, a
# height: h, b
# - Return the area of a rectangle.
# - Compute the area of a rectangle from {width} and {height}.
# - Calculate the area of a rectangle with the given {width} and {height}.
# - Return {width} times {height}.
# - Find how large the area of a {width} by {height} rectangle is.
# ? Give the surface that a rectangle with these two sides covers.
# ? How many unit squares fit into {width} by {height}?
def rectangle_area(width: float, height: float) -> float:
    return width * height


assert rectangle_area(3, 4) == 12
assert rectangle_area(2.5, 2) == 5.0
assert rectangle_area(0, 7) == 0


# == rectangle_perimeter, perimeter_of_rectangle, calculate_rectangle_perimeter
# width: w, a
# height: h, b
# - Return the perimeter of a rectangle.
# - Compute the perimeter of a rectangle from {width} and {height}.
# - Calculate how long the four sides of a rectangle are together.
# - Return twice the sum of {width} and {height}.
# - Find the distance around a rectangle of {width} by {height}.
# ? Give the total length of the edges of a {width} by {height} rectangle.
# ? How long is a fence around a rectangle with these sides?
def rectangle_perimeter(width: float, height: float) -> float:
    return 2 * (width + height)


def rectangle_perimeter(width: float, height: float) -> float:
    return 2 * width + 2 * height


assert rectangle_perimeter(3, 4) == 14
assert rectangle_perimeter(1, 1) == 4
assert rectangle_perimeter(2.5, 0.5) == 6.0


# == triangle_area, area_of_triangle, triangle_area_from_base
# base: b, width
# height: h, altitude
# - Return the area of a triangle from its {base} and {height}.
# - Compute the area of a triangle with the given {base} and {height}.
# - Calculate half of {base} times {height}.
# - Return the area of a triangle as {base} * {height} / 2.
# - Find how large the area of a triangle of this {base} and {height} is.
# ? Give the surface of a triangle that is {height} high and {base} wide.
# ? What area has a triangle with these two measures, base and height?
def triangle_area(base: float, height: float) -> float:
    return base * height / 2


def triangle_area(base: float, height: float) -> float:
    return 0.5 * base * height


assert triangle_area(4, 3) == 6.0
assert triangle_area(5, 5) == 12.5
assert triangle_area(0, 9) == 0.0


# == heron_area, herons_formula, triangle_area_from_sides
# a: x, side1
# b: y, side2
# c: z, side3
# s: half, p
# - Return the area of a triangle with the sides {a}, {b} and {c}.
# - Compute the area of a triangle from its three sides with Heron's formula.
# - Calculate the area of a triangle when the lengths of all sides are known.
# - Use Heron's formula to find the area of a triangle.
# - Find the area of the triangle with side lengths {a}, {b} and {c}.
# ? How large is a triangle whose edges are {a}, {b} and {c} long?
# ? Give the surface of a triangle by the formula of Heron.
def heron_area(a: float, b: float, c: float) -> float:
    s = (a + b + c) / 2
    return math.sqrt(s * (s - a) * (s - b) * (s - c))


assert round(heron_area(3, 4, 5), 6) == 6.0
assert round(heron_area(5, 5, 6), 6) == 12.0
assert round(heron_area(2, 2, 2), 4) == 1.7321


# == is_valid_triangle, valid_triangle, can_form_triangle
# a: x, side1
# b: y, side2
# c: z, side3
# - Return True if {a}, {b} and {c} can be the sides of a triangle.
# - Check whether three lengths form a triangle that is not flat.
# - Test if each two of the sides {a}, {b}, {c} are together longer than the third.
# - Determine whether a triangle with sides {a}, {b} and {c} exists; flat ones do not count.
# - Return whether the three sides satisfy the strict triangle inequality.
# ? Say whether a real triangle can be built from the lengths {a}, {b} and {c}.
# ? Is every one of the three sides shorter than the other two together?
def is_valid_triangle(a: float, b: float, c: float) -> bool:
    return a + b > c and a + c > b and b + c > a


def is_valid_triangle(a: float, b: float, c: float) -> bool:
    short, middle, longest = sorted([a, b, c])
    return short + middle > longest


assert is_valid_triangle(3, 4, 5)
assert is_valid_triangle(2, 2, 2)
assert not is_valid_triangle(1, 2, 3)
assert not is_valid_triangle(10, 1, 1)


# ==! triangle_type, classify_triangle, kind_of_triangle
# a: x, side1
# b: y, side2
# c: z, side3
# - Return "equilateral", "isosceles" or "scalene" for a triangle with these sides.
# - Classify a triangle by its sides: "equilateral", "isosceles" or "scalene".
# - Tell whether the sides form an "equilateral", "isosceles" or "scalene" triangle.
# - Return the type of a triangle: "equilateral", "isosceles" or "scalene".
# - Name the triangle with sides {a}, {b}, {c}: "equilateral", "isosceles" or "scalene".
# ? Say "equilateral" for three equal sides, "isosceles" for two, otherwise "scalene".
# ? Return "scalene", "isosceles" or "equilateral", depending on which sides are equal.
def triangle_type(a: float, b: float, c: float) -> str:
    if a == b == c:
        return "equilateral"
    if a == b or b == c or a == c:
        return "isosceles"
    return "scalene"


def triangle_type(a: float, b: float, c: float) -> str:
    kinds = {1: "equilateral", 2: "isosceles", 3: "scalene"}
    return kinds[len({a, b, c})]


assert triangle_type(3, 3, 3) == "equilateral"
assert triangle_type(3, 3, 5) == "isosceles"
assert triangle_type(5, 3, 5) == "isosceles"
assert triangle_type(3, 4, 5) == "scalene"


# == is_right_triangle, is_right_angled, right_triangle
# a: x, side1
# b: y, side2
# c: z, side3
# - Return True if a triangle with these three sides has a right angle.
# - Check whether the integers {a}, {b} and {c}, in any order, form a right triangle.
# - Test the three sides, in any order, with the theorem of Pythagoras.
# - Determine whether the sides {a}, {b} and {c} belong to a right-angled triangle.
# - Return whether the square of the longest side is the sum of the other two squares.
# ? Say whether the lengths {a}, {b}, {c} make a triangle with an angle of 90 degrees.
# ? Do these three lengths, in any order, make a triangle with two perpendicular sides?
def is_right_triangle(a: int, b: int, c: int) -> bool:
    short, middle, longest = sorted([a, b, c])
    return short**2 + middle**2 == longest**2


def is_right_triangle(a: int, b: int, c: int) -> bool:
    sides = sorted([a, b, c])
    return sides[0] ** 2 + sides[1] ** 2 == sides[2] ** 2


assert is_right_triangle(3, 4, 5)
assert is_right_triangle(13, 5, 12)
assert not is_right_triangle(3, 4, 6)
assert not is_right_triangle(2, 2, 2)


# == hypotenuse, hypotenuse_length, calculate_hypotenuse
# a: x, leg1
# b: y, leg2
# - Return the length of the hypotenuse of a right triangle with legs {a} and {b}.
# - Compute the hypotenuse from the two other sides of a right triangle.
# - Calculate the longest side of a right triangle with the theorem of Pythagoras.
# - Return the square root of the sum of the squares of {a} and {b}.
# - Find the hypotenuse of a right triangle whose short sides are {a} and {b}.
# ? How long is the side opposite the right angle, given the legs {a} and {b}?
# ? Give the third side of a right triangle from its two legs.
def hypotenuse(a: float, b: float) -> float:
    return math.sqrt(a**2 + b**2)


def hypotenuse(a: float, b: float) -> float:
    return math.hypot(a, b)


assert round(hypotenuse(3, 4), 6) == 5.0
assert round(hypotenuse(5, 12), 6) == 13.0
assert round(hypotenuse(1, 1), 4) == 1.4142


# == trapezoid_area, area_of_trapezoid, trapezium_area
# a: top, side1
# b: bottom, side2
# height: h, distance
# - Return the area of a trapezoid with the parallel sides {a} and {b}.
# - Compute the area of a trapezoid from its parallel sides and its height.
# - Calculate the mean of {a} and {b} times {height}.
# - Find the area of a trapezoid whose parallel sides are {height} apart.
# - Return the area of a trapezoid as ({a} + {b}) / 2 * {height}.
# ? Give the surface of a trapezium with parallel edges {a} and {b} of this height.
# ? How large is a trapezoid that has the bases {a} and {b}?
def trapezoid_area(a: float, b: float, height: float) -> float:
    return (a + b) / 2 * height


def trapezoid_area(a: float, b: float, height: float) -> float:
    return (a + b) * height / 2


assert trapezoid_area(3, 5, 2) == 8.0
assert trapezoid_area(4, 4, 3) == 12.0
assert trapezoid_area(0, 6, 5) == 15.0


# == sphere_volume, volume_of_sphere, ball_volume
# radius: r, rad
# - Return the volume of a sphere with the given radius.
# - Compute the volume of a sphere from its radius.
# - Calculate four thirds of pi times the cube of {radius}.
# - Find the volume of a ball of radius {radius}.
# - Return how much space a sphere of radius {radius} takes.
# ? How much fits into a ball with the radius {radius}?
# ? Give the content of a sphere that measures {radius} from centre to surface.
def sphere_volume(radius: float) -> float:
    return 4 / 3 * math.pi * radius**3


assert sphere_volume(0) == 0.0
assert round(sphere_volume(1), 4) == 4.1888
assert round(sphere_volume(3), 3) == 113.097


# == cylinder_volume, volume_of_cylinder, calculate_cylinder_volume
# radius: r, rad
# height: h, length
# - Return the volume of a cylinder.
# - Compute the volume of a cylinder from {radius} and {height}.
# - Calculate the area of a circle of this {radius} times {height}.
# - Find how much a cylinder of the given {radius} and {height} holds.
# - Return the volume of a cylinder that has a round base of the given {radius}.
# ? How much water fits into a round tank of {radius} and {height}?
# ? Give pi times the square of {radius} times {height}.
def cylinder_volume(radius: float, height: float) -> float:
    return math.pi * radius**2 * height


assert cylinder_volume(0, 5) == 0.0
assert round(cylinder_volume(1, 1), 4) == 3.1416
assert round(cylinder_volume(2, 3), 4) == 37.6991


# == cone_volume, volume_of_cone, calculate_cone_volume
# radius: r, rad
# height: h, length
# - Return the volume of a cone.
# - Compute the volume of a cone from the {radius} of its base and its {height}.
# - Calculate a third of pi times {radius} squared times {height}.
# - Find the volume of a cone with the given {radius} and {height}.
# - Return how much a cone with a round base of this {radius} holds.
# ? Give one third of the volume of the cylinder around a cone.
# ? How much ice fits into a cone with this {radius} and {height}?
def cone_volume(radius: float, height: float) -> float:
    return math.pi * radius**2 * height / 3


assert cone_volume(0, 5) == 0.0
assert round(cone_volume(1, 3), 4) == 3.1416
assert round(cone_volume(3, 4), 4) == 37.6991


# == box_volume, cuboid_volume, volume_of_box
# length: a, x
# width: b, y
# height: c, z
# - Return the volume of a box.
# - Compute the volume of a box from {length}, {width} and {height}.
# - Calculate the volume of a rectangular box.
# - Return the product of {length}, {width} and {height}.
# - Find how much space a box with the given three sides has.
# ? Give the content of a cuboid with these edges.
# ? How many unit cubes fit into {length} by {width} by {height}?
def box_volume(length: float, width: float, height: float) -> float:
    return length * width * height


assert box_volume(2, 3, 4) == 24
assert box_volume(1, 1, 1) == 1
assert box_volume(5, 0, 2) == 0


# == box_surface_area, cuboid_surface_area, surface_area_of_box
# length: a, x
# width: b, y
# height: c, z
# - Return the surface area of a closed box.
# - Compute the total area of the six sides of a box.
# - Calculate the surface area of a box from {length}, {width} and {height}.
# - Return the sum of the areas of all six faces of a rectangular box.
# - Find how much paper covers all sides of a {length} by {width} by {height} box.
# ? Give the outer area of a cuboid with these edges.
# ? How large are the six rectangles around a box together?
def box_surface_area(length: float, width: float, height: float) -> float:
    return 2 * (length * width + length * height + width * height)


assert box_surface_area(1, 1, 1) == 6
assert box_surface_area(2, 3, 4) == 52
assert box_surface_area(1, 2, 0) == 4


# == distance, euclidean_distance, distance_between_points
# x1: ax, start_x
# y1: ay, start_y
# x2: bx, stop_x
# y2: by, stop_y
# - Return the distance between two points in the plane.
# - Compute the Euclidean distance from ({x1}, {y1}) to ({x2}, {y2}).
# - Calculate how far two points are apart.
# - Return the length of the straight line between ({x1}, {y1}) and ({x2}, {y2}).
# - Find the straight-line distance between two points given by their coordinates.
# ? How far is it from the first point to the second in a straight line?
# ? Give the length of the segment that joins ({x1}, {y1}) and ({x2}, {y2}).
def distance(x1: float, y1: float, x2: float, y2: float) -> float:
    return math.sqrt((x2 - x1) ** 2 + (y2 - y1) ** 2)


def distance(x1: float, y1: float, x2: float, y2: float) -> float:
    return math.hypot(x2 - x1, y2 - y1)


assert distance(0, 0, 3, 4) == 5.0
assert distance(1, 1, 1, 1) == 0.0
assert distance(-1, 0, 2, 4) == 5.0
assert round(distance(0, 0, 1, 1), 4) == 1.4142


# == point_distance, distance_of_points, distance_between
# p: a, start, first
# q: b, target, second
# - Return the distance between the points {p} and {q}, given as pairs (x, y).
# - Compute the Euclidean distance between two points, each an (x, y) tuple.
# - Calculate how far the points {p} and {q}, both (x, y) pairs, are apart.
# - Return the straight-line distance from the pair {p} to the pair {q}.
# - Find the distance between two (x, y) pairs in the plane.
# ? How long is the line from {p} to {q}, two tuples of coordinates?
# ? Give the length of the segment between the (x, y) points {p} and {q}.
def point_distance(p: tuple[float, float], q: tuple[float, float]) -> float:
    return math.sqrt((p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2)


def point_distance(p: tuple[float, float], q: tuple[float, float]) -> float:
    return math.dist(p, q)


assert point_distance((0, 0), (3, 4)) == 5.0
assert point_distance((2, 2), (2, 2)) == 0.0
assert point_distance((1, 2), (1, -2)) == 4.0


# == manhattan_distance, taxicab_distance, city_block_distance
# p: a, start, first
# q: b, target, second
# - Return the Manhattan distance between the points {p} and {q}, given as pairs.
# - Compute the taxicab distance between two (x, y) tuples.
# - Add the horizontal and the vertical distance of the (x, y) pairs {p} and {q}.
# - Calculate the Manhattan distance from the pair {p} to the pair {q}.
# - Return the sum of the absolute differences of the coordinates of {p} and {q}.
# ? How far is it from {p} to {q} on a grid of streets, without diagonals?
# ? Give the L1 distance of two points that are (x, y) tuples.
def manhattan_distance(p: tuple[int, int], q: tuple[int, int]) -> int:
    return abs(p[0] - q[0]) + abs(p[1] - q[1])


def manhattan_distance(p: tuple[int, int], q: tuple[int, int]) -> int:
    return sum(abs(u - v) for u, v in zip(p, q))


assert manhattan_distance((0, 0), (3, 4)) == 7
assert manhattan_distance((1, 1), (1, 1)) == 0
assert manhattan_distance((-1, 2), (2, -2)) == 7


# == midpoint, middle_point, find_midpoint
# p: a, start, first
# q: b, target, second
# - Return the midpoint between {p} and {q}, given as (x, y) pairs, as a tuple.
# - Compute the point in the middle of two (x, y) tuples, again as a tuple.
# - Find the midpoint of the line from the pair {p} to the pair {q} as an (x, y) tuple.
# - Return a tuple with the mean x and the mean y of the points {p} and {q}.
# - Calculate the (x, y) tuple that lies halfway between the pairs {p} and {q}.
# ? Which point, as a tuple, lies just as far from the pair {p} as from {q}, between them?
# ? Give the centre of the segment between two (x, y) points as a pair.
def midpoint(p: tuple[float, float], q: tuple[float, float]) -> tuple[float, float]:
    return ((p[0] + q[0]) / 2, (p[1] + q[1]) / 2)


def midpoint(p: tuple[float, float], q: tuple[float, float]) -> tuple[float, float]:
    x = (p[0] + q[0]) / 2
    y = (p[1] + q[1]) / 2
    return (x, y)


assert midpoint((0, 0), (2, 4)) == (1.0, 2.0)
assert midpoint((1, 1), (1, 1)) == (1.0, 1.0)
assert midpoint((-1, 3), (2, 4)) == (0.5, 3.5)


# == slope, line_slope, gradient_of_line
# x1: ax, start_x
# y1: ay, start_y
# x2: bx, stop_x
# y2: by, stop_y
# - Return the slope of the line through two points, or None if it is vertical.
# - Compute the slope from ({x1}, {y1}) to ({x2}, {y2}); a vertical line gives None.
# - Calculate rise over run between two points, None for a vertical line.
# - Return how steep the line through two points is, or None if {x1} equals {x2}.
# - Find the slope of a line given by two points. Return None for vertical lines.
# ? Give the change of y divided by the change of x, or None where x does not change.
# ? How much does y grow per step of x between two points? None if they have one x.
def slope(x1: float, y1: float, x2: float, y2: float) -> float | None:
    if x1 == x2:
        return None
    return (y2 - y1) / (x2 - x1)


def slope(x1: float, y1: float, x2: float, y2: float) -> float | None:
    run = x2 - x1
    if run == 0:
        return None
    return (y2 - y1) / run


assert slope(0, 0, 2, 4) == 2.0
assert slope(0, 5, 3, 5) == 0.0
assert slope(1, 1, 1, 9) is None
assert slope(0, 0, 4, -2) == -0.5


# == point_in_circle, is_inside_circle, circle_contains
# x: px, a
# y: py, b
# cx: center_x, mx
# cy: center_y, my
# radius: r, limit
# - Return True if the point ({x}, {y}) lies in a circle or on its edge.
# - Check whether ({x}, {y}) is at most {radius} away from ({cx}, {cy}).
# - Test if a point is inside the circle or on its border.
# - Determine whether a point is within {radius} of the center, edge included.
# - Return whether the distance of a point to the center is not greater than {radius}.
# ? Does the closed disc around ({cx}, {cy}) contain the point ({x}, {y})?
# ? Say whether a point is no farther than {radius} from the middle of a circle.
def point_in_circle(x: float, y: float, cx: float, cy: float, radius: float) -> bool:
    return (x - cx) ** 2 + (y - cy) ** 2 <= radius**2


def point_in_circle(x: float, y: float, cx: float, cy: float, radius: float) -> bool:
    return math.hypot(x - cx, y - cy) <= radius


assert point_in_circle(0, 0, 0, 0, 1)
assert point_in_circle(3, 4, 0, 0, 5)
assert not point_in_circle(3, 4, 0, 0, 4)
assert not point_in_circle(10, 0, 1, 1, 2)


# == polygon_area, shoelace_area, area_of_polygon
# points: corners, vertices
# total: area, twice
# - Return the area of a simple polygon given by its corners in order.
# - Compute the area of a polygon with the shoelace formula.
# - Calculate the area of a polygon from a list of (x, y) corners in order.
# - Find the area enclosed by the polygon with the corners {points}, never negative.
# - Use the shoelace formula to get the positive area of the polygon {points}.
# ? How large is the polygon whose (x, y) corners are listed in {points}?
# ? Give the surface inside the closed line through {points}, in either direction.
def polygon_area(points: list[tuple[float, float]]) -> float:
    total = 0
    for i in range(len(points)):
        x1, y1 = points[i]
        x2, y2 = points[(i + 1) % len(points)]
        total += x1 * y2 - x2 * y1
    return abs(total) / 2


def polygon_area(points: list[tuple[float, float]]) -> float:
    total = 0
    for (x1, y1), (x2, y2) in zip(points, points[1:] + points[:1]):
        total += x1 * y2 - x2 * y1
    return abs(total) / 2


assert polygon_area([(0, 0), (4, 0), (4, 3), (0, 3)]) == 12.0
assert polygon_area([(0, 0), (0, 3), (4, 0)]) == 6.0
assert polygon_area([(0, 0), (2, 0), (3, 1), (1, 1)]) == 2.0


# == rectangles_overlap, do_rectangles_overlap, overlapping_rectangles
# a: first, r1
# b: second, r2
# - Return True if two rectangles (left, top, right, bottom) share some area.
# - Check whether the rectangles {a} and {b} overlap; touching edges do not count.
# - Test if two boxes (x1, y1, x2, y2) overlap in more than an edge.
# - Determine whether the rectangles {a} and {b}, as (x1, y1, x2, y2), share some area.
# - Return whether two rectangles, tuples of x1, y1, x2, y2, have an area in common.
# ? Say whether some area belongs to both rectangles (x1, y1, x2, y2).
# ? Do the two rectangles, each (left, top, right, bottom), cover each other in part?
def rectangles_overlap(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def rectangles_overlap(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width > 0 and height > 0


assert rectangles_overlap((0, 0, 4, 4), (2, 2, 6, 6))
assert rectangles_overlap((0, 0, 9, 9), (3, 3, 4, 4))
assert not rectangles_overlap((0, 0, 2, 2), (3, 3, 5, 5))
assert not rectangles_overlap((0, 0, 2, 2), (2, 0, 4, 2))


# == celsius_to_fahrenheit, to_fahrenheit, c_to_f
# celsius: degrees, temperature, c
# - Convert a temperature from Celsius to Fahrenheit.
# - Return {celsius} degrees Celsius in degrees Fahrenheit.
# - Convert degrees Celsius to degrees Fahrenheit.
# - Compute the Fahrenheit temperature for {celsius} degrees Celsius.
# - Return the temperature in Fahrenheit that equals {celsius} in Celsius.
# ? How many degrees Fahrenheit are {celsius} degrees Celsius?
# ? Turn a Celsius value into Fahrenheit.
def celsius_to_fahrenheit(celsius: float) -> float:
    return celsius * 9 / 5 + 32


assert celsius_to_fahrenheit(0) == 32.0
assert celsius_to_fahrenheit(100) == 212.0
assert celsius_to_fahrenheit(-40) == -40.0


# == fahrenheit_to_celsius, to_celsius, f_to_c
# fahrenheit: degrees, temperature, f
# - Convert a temperature from Fahrenheit to Celsius.
# - Return {fahrenheit} degrees Fahrenheit in degrees Celsius.
# - Convert degrees Fahrenheit to degrees Celsius.
# - Compute the Celsius temperature for {fahrenheit} degrees Fahrenheit.
# - Return the temperature in Celsius that equals {fahrenheit} in Fahrenheit.
# ? How many degrees Celsius are {fahrenheit} degrees Fahrenheit?
# ? Turn a Fahrenheit value into Celsius.
def fahrenheit_to_celsius(fahrenheit: float) -> float:
    return (fahrenheit - 32) * 5 / 9


assert round(fahrenheit_to_celsius(32), 6) == 0.0
assert round(fahrenheit_to_celsius(212), 6) == 100.0
assert round(fahrenheit_to_celsius(-40), 6) == -40.0
assert round(fahrenheit_to_celsius(98.6), 2) == 37.0


# == degrees_to_radians, to_radians, deg_to_rad
# degrees: angle, deg
# - Convert an angle from degrees to radians.
# - Return the angle {degrees} in radians instead of degrees.
# - Convert {degrees}, an angle in degrees, to radians.
# - Compute {degrees} times pi divided by 180.
# - Return how many radians an angle measured in degrees has.
# ? Give an angle measured in degrees as radians.
# ? Turn degrees into radians, so that 180 becomes pi.
def degrees_to_radians(degrees: float) -> float:
    return degrees * math.pi / 180


def degrees_to_radians(degrees: float) -> float:
    return math.radians(degrees)


assert degrees_to_radians(0) == 0.0
assert round(degrees_to_radians(180), 4) == 3.1416
assert round(degrees_to_radians(-90), 4) == -1.5708


# == radians_to_degrees, to_degrees, rad_to_deg
# radians: angle, rad
# - Convert an angle from radians to degrees.
# - Return the angle {radians} in degrees instead of radians.
# - Convert {radians}, an angle in radians, to degrees.
# - Compute {radians} times 180 divided by pi.
# - Return how many degrees an angle measured in radians has.
# ? Give an angle measured in radians as degrees.
# ? Turn radians into degrees: pi becomes 180.
def radians_to_degrees(radians: float) -> float:
    return radians * 180 / math.pi


def radians_to_degrees(radians: float) -> float:
    return math.degrees(radians)


assert radians_to_degrees(0) == 0.0
assert round(radians_to_degrees(3.141592653589793), 6) == 180.0
assert round(radians_to_degrees(1), 4) == 57.2958


# == km_to_miles, kilometers_to_miles, convert_km_to_miles
# km: distance, length
# - Convert kilometers to miles.
# - Return the length of {km} kilometers in miles.
# - Convert {km} kilometers to miles, where a mile is 1.609344 kilometers.
# - Compute how many miles {km} kilometers are.
# - Return {km} divided by 1.609344.
# ? How many miles make {km} kilometers?
# ? Turn a length in kilometers into miles.
def km_to_miles(km: float) -> float:
    return km / 1.609344


assert km_to_miles(0) == 0.0
assert round(km_to_miles(1.609344), 3) == 1.0
assert round(km_to_miles(10), 2) == 6.21


# == bmi, body_mass_index, calculate_bmi
# weight: mass, kilograms
# height: size, meters
# - Return the body mass index for a {weight} in kilograms and a {height} in meters.
# - Compute the BMI from {weight} in kg and {height} in m.
# - Calculate {weight} divided by the square of {height}.
# - Return the BMI of a person of the given {weight} (kg) and {height} (m).
# - Find the body mass index: kilograms divided by meters squared.
# ? What BMI has somebody who weighs {weight} kg and is {height} m tall?
# ? Give the quotient of {weight} and {height} squared.
def bmi(weight: float, height: float) -> float:
    return weight / height**2


def bmi(weight: float, height: float) -> float:
    return weight / (height * height)


assert round(bmi(80, 2), 6) == 20.0
assert round(bmi(70, 1.75), 2) == 22.86
assert round(bmi(50, 1), 6) == 50.0


# == seconds_to_hms, split_seconds, to_hours_minutes_seconds
# seconds: total, duration
# hours: h, full_hours
# minutes: m, full_minutes
# rest: remaining, left
# - Split a number of seconds into a tuple of hours, minutes and seconds.
# - Convert {seconds} to a tuple (hours, minutes, seconds).
# - Return the hours, minutes and remaining seconds in {seconds} as a tuple.
# - Convert a duration in seconds to (hours, minutes, seconds).
# - Break {seconds} down into whole hours, minutes and seconds, as a tuple.
# ? How many hours, minutes and seconds does {seconds} amount to? Return a tuple.
# ? Give a duration in seconds as a triple of hours, minutes and seconds.
def seconds_to_hms(seconds: int) -> tuple[int, int, int]:
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    return (hours, minutes, rest)


def seconds_to_hms(seconds: int) -> tuple[int, int, int]:
    hours = seconds // 3600
    minutes = seconds % 3600 // 60
    return (hours, minutes, seconds % 60)


assert seconds_to_hms(0) == (0, 0, 0)
assert seconds_to_hms(61) == (0, 1, 1)
assert seconds_to_hms(3600) == (1, 0, 0)
assert seconds_to_hms(86399) == (23, 59, 59)


# == hms_to_seconds, time_to_seconds, total_seconds_of
# hours: h, full_hours
# minutes: m, full_minutes
# seconds: s, rest
# - Convert hours, minutes and seconds to seconds.
# - Return the number of seconds in {hours}, {minutes} and {seconds}.
# - Compute how many seconds a duration of hours, minutes and seconds has.
# - Return {hours} * 3600 + {minutes} * 60 + {seconds}.
# - Add up a duration of {hours}, {minutes} and {seconds} in seconds.
# ? How many seconds long are so many hours, minutes and seconds together?
# ? Give a time span of hours, minutes and seconds as one number of seconds.
def hms_to_seconds(hours: int, minutes: int, seconds: int) -> int:
    return hours * 3600 + minutes * 60 + seconds


def hms_to_seconds(hours: int, minutes: int, seconds: int) -> int:
    return (hours * 60 + minutes) * 60 + seconds


assert hms_to_seconds(0, 0, 0) == 0
assert hms_to_seconds(1, 1, 1) == 3661
assert hms_to_seconds(0, 2, 30) == 150
