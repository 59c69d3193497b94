// The kernel of up to four matrices, the last lines of a file that defines PARTS, PRODUCERS, segment and KERNEL.

template <int FORMAT> DEVICE void segment_of(const Matrix &m, Work work, int begin, int program, char *memory) {
  work.part += (u64)begin * PARTS * (TILE * X_ROWS);
  segment<FORMAT>(m, work, program - begin, memory);
}

// Makes the rows of x those of a part of them. Returns the program's number among those of the part.
DEVICE int take_part_of_x(Work &work, int program, int programs) {
  const int number = program / programs;
  work.first_row = number * X_ROWS;
  work.x += number * work.x_bytes, work.factor += work.first_row, work.rows -= work.first_row;
  work.part += (u64)number * programs * PARTS * (TILE * X_ROWS);
  return program - number * programs;
}

// Up to four matrices. Words of parts are MISSING before and after. Each part of X_ROWS rows of x has as many programs,
// which share its work alike: so a row has the same sums in all parts, and the programs that read the same weights
// run at the same time.
extern "C" __global__ void __launch_bounds__(32 * (WARPS + PRODUCERS), 1)
KERNEL(const __grid_constant__ Matrix m0, const __grid_constant__ Matrix m1, const __grid_constant__ Matrix m2,
       const __grid_constant__ Matrix m3, Work work
#if TENSOR_MAPS
       , const __grid_constant__ TensorMap x_map
#endif
) {
  extern __shared__ __align__(1024) char memory[];
#if TENSOR_MAPS
  work.x = (const char *)&x_map;
#endif
  // A program waits for those behind it, so the device must start these first.
  const int program = take_part_of_x(work, gridDim.x - 1 - blockIdx.x, m3.end);
  // Matrices of one format share code.
#if F1 == F0
  if (program < m1.end) return segment_of<F0>(program < m0.end ? m0 : m1, work, program < m0.end ? 0 : m0.end, program, memory);
#else
  if (program < m0.end) return segment_of<F0>(m0, work, 0, program, memory);
#if F1 >= 0
  if (program < m1.end) return segment_of<F1>(m1, work, m0.end, program, memory);
#endif
#endif
#if F2 >= 0 && F3 == F2
  segment_of<F2>(program < m2.end ? m2 : m3, work, program < m2.end ? m1.end : m2.end, program, memory);
#elif F2 >= 0
  if (program < m2.end) return segment_of<F2>(m2, work, m1.end, program, memory);
#if F3 >= 0
  segment_of<F3>(m3, work, m2.end, program, memory);
#endif
#endif
}
