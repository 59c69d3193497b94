"""Matrices and grids."""


# == transpose, transpose_matrix
# matrix: rows, table
# - Transpose a matrix.
# - Swap the rows and columns of a matrix.
# - Return the matrix whose rows are the columns of {matrix}.
# ? Turn the columns of {matrix} into rows.
def transpose(matrix: list) -> list:
    return [list(column) for column in zip(*matrix)]


def transpose(matrix: list) -> list:
    return [[row[i] for row in matrix] for i in range(len(matrix[0]))] if matrix else []


assert transpose([[1, 2], [3, 4], [5, 6]]) == [[1, 3, 5], [2, 4, 6]]
assert transpose([]) == []


# == multiply_matrices, matrix_multiply, matmul
# a: first, left
# b: second, right
# - Multiply two matrices.
# - Return the product of the matrices {a} and {b}.
# - Compute the matrix product of {a} and {b}.
# ? Give the matrix that {a} times {b} makes.
def multiply_matrices(a: list, b: list) -> list:
    return [[sum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]


def multiply_matrices(a: list, b: list) -> list:
    result = [[0] * len(b[0]) for _ in a]
    for i in range(len(a)):
        for j in range(len(b[0])):
            for k in range(len(b)):
                result[i][j] += a[i][k] * b[k][j]
    return result


assert multiply_matrices([[1, 2], [3, 4]], [[5, 6], [7, 8]]) == [[19, 22], [43, 50]]
assert multiply_matrices([[1, 2]], [[3], [4]]) == [[11]]


# == add_matrices, matrix_add
# a: first, left
# b: second, right
# - Add two matrices of the same size.
# - Return the sum of the matrices {a} and {b}.
# - Add {a} and {b} element by element.
# ? Give the matrix of the sums of {a} and {b}, place by place.
def add_matrices(a: list, b: list) -> list:
    return [[x + y for x, y in zip(row, other)] for row, other in zip(a, b)]


def add_matrices(a: list, b: list) -> list:
    result = []
    for i in range(len(a)):
        result.append([a[i][j] + b[i][j] for j in range(len(a[i]))])
    return result


assert add_matrices([[1, 2], [3, 4]], [[10, 20], [30, 40]]) == [[11, 22], [33, 44]]
assert add_matrices([], []) == []


# == scale_matrix, scalar_multiply
# matrix: rows, table
# factor: k, scale
# - Multiply every element of a matrix by a number.
# - Return {matrix} times {factor}.
# - Scale all elements of {matrix} by {factor}.
# ? Give {matrix} with each number multiplied by {factor}.
def scale_matrix(matrix: list, factor: int) -> list:
    return [[factor * x for x in row] for row in matrix]


assert scale_matrix([[1, 2], [3, 4]], 2) == [[2, 4], [6, 8]]
assert scale_matrix([], 3) == []


# == identity_matrix, identity
# n: size, order
# - Return the identity matrix of size {n}.
# - Make an n by n matrix with ones on the diagonal.
# - Build the identity matrix with {n} rows.
# ? Make a square matrix of {n} rows: ones on the diagonal, zeros elsewhere.
def identity_matrix(n: int) -> list:
    return [[1 if i == j else 0 for j in range(n)] for i in range(n)]


def identity_matrix(n: int) -> list:
    matrix = [[0] * n for _ in range(n)]
    for i in range(n):
        matrix[i][i] = 1
    return matrix


assert identity_matrix(2) == [[1, 0], [0, 1]]
assert identity_matrix(1) == [[1]]
assert identity_matrix(0) == []


# == zeros, zero_matrix
# rows: height, m
# columns: width, n
# - Make a matrix of zeros.
# - Return a matrix of zeros with {rows} rows and {columns} columns.
# - Build a table of {rows} rows and {columns} columns, all zero.
# ? Give {rows} rows of {columns} zeros each.
def zeros(rows: int, columns: int) -> list:
    return [[0] * columns for _ in range(rows)]


assert zeros(2, 3) == [[0, 0, 0], [0, 0, 0]]
assert zeros(0, 3) == []


# == determinant, det
# matrix: rows, m
# - Compute the determinant of a square matrix.
# - Return the determinant of {matrix}.
# - Calculate the determinant by expansion along the first row.
# ? Give the determinant of the square {matrix}.
def determinant(matrix: list) -> int:
    if len(matrix) == 1:
        return matrix[0][0]
    total = 0
    for column, value in enumerate(matrix[0]):
        minor = [row[:column] + row[column + 1 :] for row in matrix[1:]]
        total += (-1) ** column * value * determinant(minor)
    return total


assert determinant([[5]]) == 5
assert determinant([[1, 2], [3, 4]]) == -2
assert determinant([[2, 0, 1], [1, 3, 2], [1, 1, 1]]) == 0


# == trace, matrix_trace
# matrix: rows, table
# - Add up the diagonal of a square matrix.
# - Return the trace of {matrix}.
# - Sum the elements on the main diagonal.
# ? Give the sum of the main diagonal of {matrix}.
def trace(matrix: list) -> int:
    return sum(matrix[i][i] for i in range(len(matrix)))


assert trace([[1, 2], [3, 4]]) == 5
assert trace([]) == 0


# == rotate_matrix, rotate_clockwise
# matrix: grid, image
# - Rotate a matrix by 90 degrees clockwise.
# - Turn {matrix} clockwise by a quarter.
# - Return {matrix} rotated clockwise.
# ? Give {matrix} after a quarter turn to the right.
def rotate_matrix(matrix: list) -> list:
    return [list(row) for row in zip(*matrix[::-1])]


assert rotate_matrix([[1, 2], [3, 4]]) == [[3, 1], [4, 2]]
assert rotate_matrix([[1, 2, 3]]) == [[1], [2], [3]]


# == spiral_order, spiral
# matrix: grid, rows
# - Return the elements of a matrix in spiral order.
# - List the elements of {matrix} along a spiral, clockwise from the top left.
# - Read {matrix} in a clockwise spiral from the top left corner.
# ? Walk around {matrix} from the top left, clockwise and inwards, and list what is met.
def spiral_order(matrix: list) -> list:
    matrix = [list(row) for row in matrix]
    result = []
    while matrix:
        result += matrix.pop(0)
        matrix = [list(row) for row in zip(*matrix)][::-1]
    return result


assert spiral_order([[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == [1, 2, 3, 6, 9, 8, 7, 4, 5]
assert spiral_order([[1, 2]]) == [1, 2]
assert spiral_order([]) == []


# == row_sums, sum_rows
# matrix: table, grid
# - Sum each row of a matrix.
# - Return the list of the sums of the rows.
# - Add up every row of {matrix}.
# ? Give one sum for each row of {matrix}.
def row_sums(matrix: list) -> list:
    return [sum(row) for row in matrix]


assert row_sums([[1, 2], [3, 4]]) == [3, 7]
assert row_sums([]) == []


# == column_sums, sum_columns
# matrix: table, grid
# - Sum each column of a matrix.
# - Return the list of the sums of the columns.
# - Add up every column of {matrix}.
# ? Give one sum for each column of {matrix}.
def column_sums(matrix: list) -> list:
    return [sum(column) for column in zip(*matrix)]


assert column_sums([[1, 2], [3, 4]]) == [4, 6]
assert column_sums([]) == []


# == max_in_matrix, largest_element
# matrix: table, grid
# - Return the largest element of a matrix.
# - Find the maximum of all numbers in {matrix}.
# - Return the biggest number in any row.
# ? What is the greatest number of {matrix}?
def max_in_matrix(matrix: list) -> int:
    return max(max(row) for row in matrix)


def max_in_matrix(matrix: list) -> int:
    largest = matrix[0][0]
    for row in matrix:
        for value in row:
            if value > largest:
                largest = value
    return largest


assert max_in_matrix([[1, 9], [3, 4]]) == 9
assert max_in_matrix([[-5]]) == -5


# == is_square_matrix, is_square_grid
# matrix: table, rows
# - Check whether a matrix has as many rows as columns.
# - Return True if {matrix} is square.
# - Tell whether every row is as long as there are rows.
# ? Are there as many columns in {matrix} as rows?
def is_square_matrix(matrix: list) -> bool:
    return all(len(row) == len(matrix) for row in matrix)


assert is_square_matrix([[1, 2], [3, 4]])
assert not is_square_matrix([[1, 2]])


# == is_symmetric, is_symmetric_matrix
# matrix: table, rows
# - Check whether a square matrix is symmetric.
# - Return True if {matrix} equals its transpose.
# - Tell whether {matrix} is mirrored at its diagonal.
# ? Is {matrix} the same with rows and columns swapped?
def is_symmetric(matrix: list) -> bool:
    return matrix == [list(column) for column in zip(*matrix)]


def is_symmetric(matrix: list) -> bool:
    for i in range(len(matrix)):
        for j in range(i):
            if matrix[i][j] != matrix[j][i]:
                return False
    return True


assert is_symmetric([[1, 2], [2, 3]])
assert not is_symmetric([[1, 2], [3, 4]])


# == is_magic_square, magic_square
# square: matrix, grid
# - Check whether a square is magic: all rows, columns and diagonals have one sum.
# - Return True if rows, columns and both diagonals add up to the same number.
# - Tell whether {square} is a magic square.
# ? Do all rows, columns and both diagonals of {square} have the same sum?
def is_magic_square(square: list) -> bool:
    n = len(square)
    sums = [sum(row) for row in square]
    sums += [sum(column) for column in zip(*square)]
    sums.append(sum(square[i][i] for i in range(n)))
    sums.append(sum(square[i][n - 1 - i] for i in range(n)))
    return len(set(sums)) == 1


assert is_magic_square([[2, 7, 6], [9, 5, 1], [4, 3, 8]])
assert not is_magic_square([[1, 2], [3, 4]])


# == flatten_matrix, to_flat_list
# matrix: table, grid
# - Put all rows of a matrix into one list.
# - Return the elements of {matrix} row by row in one list.
# - Flatten {matrix} row by row.
# ? Give one list of all elements of {matrix}, row after row.
def flatten_matrix(matrix: list) -> list:
    return [value for row in matrix for value in row]


assert flatten_matrix([[1, 2], [3]]) == [1, 2, 3]
assert flatten_matrix([]) == []


# == reshape, to_rows
# values: items, numbers
# columns: width, size
# - Cut a list into rows of {columns} elements.
# - Arrange {values} in rows of {columns}.
# - Return {values} as a matrix with {columns} columns.
# ? Make rows of {columns} elements each from {values}.
def reshape(values: list, columns: int) -> list:
    return [values[i : i + columns] for i in range(0, len(values), columns)]


assert reshape([1, 2, 3, 4], 2) == [[1, 2], [3, 4]]
assert reshape([], 3) == []


# == diagonal, main_diagonal
# matrix: table, grid
# - Return the main diagonal of a square matrix.
# - List the elements of {matrix} from the top left to the bottom right.
# - Return the elements on the diagonal of {matrix}.
# ? Give the diagonal of {matrix} from top left as a list.
def diagonal(matrix: list) -> list:
    return [matrix[i][i] for i in range(len(matrix))]


assert diagonal([[1, 2], [3, 4]]) == [1, 4]
assert diagonal([]) == []


# == count_neighbors, live_neighbors
# grid: board, cells
# row: y, r
# column: x, c
# - Count the live cells around a cell.
# - Return how many of the eight neighbours of a cell are 1.
# - Count the ones around the cell at {row} and {column}, borders included.
# ? How many of the up to eight cells around {row}, {column} are 1?
def count_neighbors(grid: list, row: int, column: int) -> int:
    total = 0
    for i in range(row - 1, row + 2):
        for j in range(column - 1, column + 2):
            if (i, j) == (row, column):
                continue
            if 0 <= i < len(grid) and 0 <= j < len(grid[0]):
                total += grid[i][j]
    return total


assert count_neighbors([[1, 1], [1, 1]], 0, 0) == 3
assert count_neighbors([[1, 0, 0], [0, 1, 0], [0, 0, 1]], 1, 1) == 2
assert count_neighbors([[1]], 0, 0) == 0


# == count_islands, number_of_islands
# grid: board, field
# - Count the islands of ones in a grid.
# - Return the number of groups of ones that touch side by side.
# - Count connected groups of 1 in a grid of 0 and 1.
# ? How many groups of ones, joined at their sides, does {grid} have?
def count_islands(grid: list) -> int:
    seen = set()
    islands = 0
    for row in range(len(grid)):
        for column in range(len(grid[0])):
            if grid[row][column] != 1 or (row, column) in seen:
                continue
            islands += 1
            stack = [(row, column)]
            while stack:
                r, c = stack.pop()
                if (r, c) in seen:
                    continue
                if 0 <= r < len(grid) and 0 <= c < len(grid[0]) and grid[r][c] == 1:
                    seen.add((r, c))
                    stack += [(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]
    return islands


assert count_islands([[1, 1, 0], [0, 0, 0], [1, 0, 1]]) == 3
assert count_islands([[0]]) == 0
assert count_islands([]) == 0


# == flood_fill, fill_region
# grid: image, picture
# row: y, r
# column: x, c
# color: value, new
# - Fill the connected area of one colour with another.
# - Flood fill: give the area around a cell a new colour, in place.
# - Replace the colour of a cell and of all equal cells joined to it; return {grid}.
# ? Paint the area of equal cells around {row}, {column} with {color}; return {grid}.
def flood_fill(grid: list, row: int, column: int, color: int) -> list:
    old = grid[row][column]
    if old == color:
        return grid
    stack = [(row, column)]
    while stack:
        i, j = stack.pop()
        if 0 <= i < len(grid) and 0 <= j < len(grid[0]) and grid[i][j] == old:
            grid[i][j] = color
            stack += [(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)]
    return grid


assert flood_fill([[1, 1, 0], [0, 1, 0]], 0, 0, 7) == [[7, 7, 0], [0, 7, 0]]
assert flood_fill([[2]], 0, 0, 2) == [[2]]


# ==! border_sum
# matrix: grid, table
# ? Add up the numbers in the outermost rows and columns of {matrix}.
# ? Give the sum of all numbers on the border of {matrix}.
def border_sum(matrix: list) -> int:
    total = 0
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            if i in (0, len(matrix) - 1) or j in (0, len(row) - 1):
                total += value
    return total


assert border_sum([[1, 1, 1], [1, 9, 1], [1, 1, 1]]) == 8
assert border_sum([[5]]) == 5
