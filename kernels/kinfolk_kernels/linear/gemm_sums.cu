// How the sums of a tile become results: those of its column warps, and of the programs that share it.
//
// A file that includes this one is a kernel of gemm_parts.cu, and defines PARTS before.

DEVICE void add_four(float *v, const uint4 &w) {
  v[0] += __uint_as_float(w.x), v[1] += __uint_as_float(w.y), v[2] += __uint_as_float(w.z), v[3] += __uint_as_float(w.w);
}

// A word of a part of a tile's sums is there when it is not MISSING: no sum has these bits. So parts need no flags
// and no fences, and several can be asked for at once. Who has read a word sets it back.
constexpr u32 MISSING = ~0u;
DEVICE u32 bits_of(float sum) {
  const u32 bits = __float_as_uint(sum);
  return bits == MISSING ? 0x7FFFFFFFu : bits;
}
DEVICE uint4 bits_of_four(const float *v) { return {bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3])}; }
DEVICE bool there(const uint4 &v) { return v.x != MISSING && v.y != MISSING && v.z != MISSING && v.w != MISSING; }
DEVICE void set_back(u32 *at) { store_for_others(at, {MISSING, MISSING, MISSING, MISSING}); }

#if WARPGROUPS
template <int FORMAT> DEVICE void write_y(float (*sums)[4], const RowFactors &factors, const Matrix &m, const Work &work, int first_row, int lane) {
#pragma unroll
  for (int j = 0; j < ROW_TILES; j++) write_tile<FORMAT>(sums[j], sums[ROW_TILES + j], j, factors, m, work, first_row, lane);
}

// A tile of several programs. Of two, the second leaves its part, and the first one adds it. Of more, each
// leaves its part and sums some tiles of x of all parts, when its share is done: one program alone would
// read all parts for longer than it multiplies.
struct SharedTile {
  int tile, first, count;  // programs

  ALWAYS SharedTile(const Work &work, int tile, int end) : tile(tile) {
    first = tile * work.span / work.share;
    count = (min((tile + 1) * work.span, end) - 1) / work.share - first + 1;
  }
  // Four sums of a lane after four. The first program may leave a part of the tile before, too.
  ALWAYS u32 *part(const Work &work, int program, int warp, int lane) const {
    return (u32 *)work.part + (u64)(PARTS * program + (program == first)) * (TILE * X_ROWS) + warp * (SUMS * 32) + lane * 4;
  }

  ALWAYS void leave(float (*sums)[4], const Work &work, int program, int warp, int lane) const {
    u32 *to = part(work, program, warp, lane);
#pragma unroll
    for (int i = 0; i < SUMS / 4; i++) store_for_others(to + i * 128, bits_of_four(sums[i]));
  }

  ALWAYS void add_other(float (*sums)[4], const Work &work, int warp, int lane) const {
    constexpr int AT_ONCE = 8;
    static_assert(SUMS / 4 % AT_ONCE == 0);
    u32 *from = part(work, first + 1, warp, lane);
#pragma unroll
    for (int i = 0; i < SUMS / 4; i += AT_ONCE) {
      uint4 words[AT_ONCE];
      bool all;
      do {
        all = true;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) words[k] = load_of_others(from + (i + k) * 128);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) all &= there(words[k]);
      } while (!__all_sync(~0u, all));
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) add_four(sums[i + k], words[k]), set_back(from + (i + k) * 128);
    }
  }

  template <int FORMAT> ALWAYS void sum(const RowFactors &factors, const Matrix &m, const Work &work, int program, int warp, int lane) const {
    constexpr int AT_ONCE = 4;  // parts that are read
    for (int j = program - first; j < ROW_TILES; j += count) {
      float sums[2][4] = {};
      auto part_of = [&](int k, int half) {  // those that do not exist are the last one again
        return part(work, first + min(k, count - 1), warp, lane) + (j + half * ROW_TILES) * 128;
      };
      for (int p = 0; p < count; p += AT_ONCE) {
        uint4 words[AT_ONCE][2];
        bool all;
        do {
          all = true;
#pragma unroll
          for (int k = 0; k < AT_ONCE; k++) words[k][0] = load_of_others(part_of(p + k, 0)), words[k][1] = load_of_others(part_of(p + k, 1));
#pragma unroll
          for (int k = 0; k < AT_ONCE; k++) all &= there(words[k][0]) && there(words[k][1]);
        } while (!__all_sync(~0u, all));
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
          if (p + k >= count) break;
#pragma unroll
          for (int half = 0; half < 2; half++) add_four(sums[half], words[k][half]), set_back(part_of(p + k, half));
        }
      }
      write_tile<FORMAT>(sums[0], sums[1], j, factors, m, work, (tile * ROW_WARPS + warp) * 32, lane);
    }
  }
};
#else
// The sums of a tile are added, and its results written, by OWNERS of its column warps: owner k has tiles k, k +
// OWNERS, ... of x. Of a tile a lane has eight sums: two rows of x times its four rows of the matrix.
constexpr int OWNERS = COLUMN_WARPS == 1 || ROW_TILES == 1 ? 1 : 2, OWNED = (ROW_TILES + OWNERS - 1) / OWNERS;
constexpr int TILE_WORDS = 8 * 32;

DEVICE float4 four(const float *v) { return {v[0], v[1], v[2], v[3]}; }
DEVICE void add_four(float *v, const float4 &w) { v[0] += w.x, v[1] += w.y, v[2] += w.z, v[3] += w.w; }

// Adds the sums of the column warps of a tile, in shared memory, in the order 0, 1, ... but for the first two, whose
// order does not matter. Owners get theirs. before: whether the share has a tile before this one.
DEVICE void sum_of_columns(float (*own)[2][4], const float (*sums)[4], float *left, int row_warp, int column_warp, bool before, int lane) {
#pragma unroll
  for (int n = 0; n < OWNED; n++)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        own[n][half][i] = sums[half * ROW_TILES + n * OWNERS][i];
        if (OWNERS == 2 && n * 2 + 1 < ROW_TILES && column_warp == 1) own[n][half][i] = sums[half * ROW_TILES + n * 2 + 1][i];
      }
  if (COLUMN_WARPS == 1) return;
  // Named barriers: of sums that have been read, and of sums that are there.
  if (before) column_warps_wait(ROW_WARPS + row_warp);
  // Of tile j, for its owner: a place for each of the other column warps.
  auto place = [&](int other, int j) { return left + (((other * ROW_WARPS + row_warp) * ROW_TILES + j) * TILE_WORDS + lane * 4); };
#pragma unroll
  for (int j = 0; j < ROW_TILES; j++) {
    if (column_warp == j % OWNERS) continue;
    float *to = place(column_warp - (column_warp > j % OWNERS), j);
    *(float4 *)to = four(sums[j]), *(float4 *)(to + 128) = four(sums[ROW_TILES + j]);
  }
  column_warps_wait(row_warp);
  if (column_warp >= OWNERS) return;
#pragma unroll
  for (int other = 0; other < COLUMN_WARPS - 1; other++)
#pragma unroll
    for (int n = 0; n < OWNED; n++) {
      const float *from = place(other, min(n * OWNERS + column_warp, ROW_TILES - 1));
      add_four(own[n][0], *(const float4 *)from), add_four(own[n][1], *(const float4 *)(from + 128));
    }
}

constexpr int AT_ONCE = OWNED == 1 ? 4 : 1;  // parts that are asked for

// Writes the results of a tile. A program that has begun inside the tile leaves its part instead; the one
// that has the tile's first units adds the parts.
template <int FORMAT>
DEVICE void end_tile(float (*own)[2][4], const RowFactors &factors, const Matrix &m, const Work &work, int program, int tile, int start, int end, int row_warp, int owner, int lane) {
  auto part_of = [&](int program, int n) {
    return (u32 *)work.part + (u64)program * (TILE * X_ROWS) + (row_warp * ROW_TILES + n * OWNERS + owner) * TILE_WORDS + lane * 4;
  };
  auto has = [&](int n) { return ROW_TILES % OWNERS == 0 || n * OWNERS + owner < ROW_TILES; };
  if (start > tile * work.span) {
#pragma unroll
    for (int n = 0; n < OWNED; n++)
      if (has(n)) store_for_others(part_of(program, n), bits_of_four(own[n][0])), store_for_others(part_of(program, n) + 128, bits_of_four(own[n][1]));
    return;
  }
  const int stop = (min((tile + 1) * work.span, end) - 1) / work.share + 1;
  for (int first = program + 1; first < stop; first += AT_ONCE) {
    uint4 words[AT_ONCE][OWNED][2];
    bool all;
    do {
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
        for (int n = 0; n < OWNED; n++) {
          // Those that do not exist are the last one again.
          const u32 *from = part_of(min(first + k, stop - 1), has(n) ? n : 0);
          words[k][n][0] = load_of_others(from), words[k][n][1] = load_of_others(from + 128);
        }
      all = true;
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
        for (int n = 0; n < OWNED; n++) all &= there(words[k][n][0]) && there(words[k][n][1]);
    } while (!__all_sync(~0u, all));
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (first + k >= stop) break;
#pragma unroll
      for (int n = 0; n < OWNED; n++) {
        if (!has(n)) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
          add_four(own[n][half], words[k][n][half]);
          set_back(part_of(first + k, n) + half * 128);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < OWNED; n++)
    if (has(n)) write_tile<FORMAT>(own[n][0], own[n][1], n * OWNERS + owner, factors, m, work, (tile * ROW_WARPS + row_warp) * 32, lane);
}
#endif
