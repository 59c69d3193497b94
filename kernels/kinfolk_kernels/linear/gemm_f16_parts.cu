// What kernels share that unpack weights to float16, in registers, as the left operand of tensor cores.
//
// A warp has 32 rows of a matrix, and unpacks a pair of groups (128 columns) at a time. A lane's word of four
// rows unpacks to the lane's own part of the operand. With WARPGROUPS, four warps multiply together (wgmma), and
// the tensor core reads x from shared memory itself; products of two rows run while the next two are unpacked.
//
// A file that includes this one defines COLUMNS, WARPGROUPS and, for them, X_IN_ROWS: whether x stands in shared
// memory in rows of 64 columns, else in the order of MmaRows; and what gemm_parts.cu needs.

constexpr int UNIT = 128;  // columns
#define TENSOR_MAPS 0
#include "gemm_parts.cu"

// -- instructions -----------------------------------------------------------------------------------------

// Of a warpgroup: asynchronous, four warps at the same instruction.
#if WARPGROUPS
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void end_of_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// Keeps the compiler from moving what reads or writes the sums of X_TILES tiles of x across waits.
template <int X_TILES> DEVICE void pin_sums(float (*sums)[4]) {
#pragma unroll
  for (int i = 0; i < 8 * X_TILES; i++) asm volatile("" : "+f"(sums[i / 4][i % 4])::"memory");
}
// What a thread has copied to shared memory is known to products that begin later. Of all memory, results that are on
// their way would be waited for, too.
DEVICE void copies_are_known() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Describes x of a step of 16 columns in shared memory: blocks of eight rows times eight columns, 128 bytes
// each, the second eight columns behind the first, and the next eight rows 512 bytes on.
DEVICE u64 describe(u32 at) { return (at & 0x3FFFF) >> 4 | (u64)(128 >> 4) << 16 | (u64)(512 >> 4) << 32; }
// The same for rows of 64 columns, 128 bytes each, whose pieces of 16 bytes are exchanged: piece i of row r stands at
// place i ^ r % 8. The next eight rows are 1024 bytes on, the next 16 columns 32 bytes.
DEVICE u64 describe_rows(u32 at) { return (at & 0x3FFFF) >> 4 | (u64)(1024 >> 4) << 32 | 1ull << 62; }
// 64 rows of a matrix times X_TILES tiles of x.
template <int X_TILES> DEVICE void multiply_warpgroup(float (*d)[4], const u32 *a, u64 x) {
  if constexpr (X_TILES == 4) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
          "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));
  } else if constexpr (X_TILES == 8) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
          "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
          "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));
  } else if constexpr (X_TILES == 10) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
        "}, {%40, %41, %42, %43}, %44, 1, 1, 1, 0;"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
          "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
          "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
          "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));
  } else if constexpr (X_TILES == 12) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47"
        "}, {%48, %49, %50, %51}, %52, 1, 1, 1, 0;"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
          "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
          "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
          "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),
          "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));
  } else if constexpr (X_TILES == 16) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
          "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
          "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
          "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),
          "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
          "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
          "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));
  } else {
    static_assert(X_TILES == 16, "wgmma is written for 4, 8, 10, 12 and 16 tiles of x");
  }
}
#endif

// -- copies of weights ----------------------------------------------------------------------------------

// What the lanes of a warp copy: the chunks of eight groups of four rows, pair by pair. The chunks of odd
// groups are exchanged in their stage, chunk i with i ^ TURN, so that lanes read from different banks.
template <int FORMAT> struct Source {
  using L = Layout<FORMAT>;
  static constexpr int GROUPS = COLUMNS / 64;
  static constexpr u32 Q_ROW = (u32)GROUPS * L::CHUNKS / 2 * 16;
  static constexpr u32 HIGH_ROW = L::TWO_BITS ? (u32)COLUMNS : (u32)((COLUMNS + 255) / 256 * 8 * 16);
  const char *q, *high, *scales;  // of the lane, at the first pair
  u64 policy;
  int there;                      // groups of four rows from the first on

  ALWAYS void begin(const Matrix &m, int first, int groups, int lane) {
    there = groups - first;
    u64 group = first;
    q = m.q + (group + lane / L::CHUNKS) * Q_ROW + lane % L::CHUNKS * 16;
    if (L::HIGH) {
      int chunk = L::TWO_BITS ? lane % 8 / 2 * 4 + lane % 2 : lane % 8;
      high = m.high + (group + lane / 8) * HIGH_ROW + chunk * 16;
    }
    if (lane < 16) scales = (L::SMALL ? m.supers : m.scales) + ((group + lane / 2) * GROUPS + lane % 2) * 16;
    else scales = m.supers + (group + lane % 8) * (GROUPS / 4) * 16;
  }

  // The same, of groups that are further on.
  ALWAYS Source moved(int groups, int lane) const {
    Source s = *this;
    s.there -= groups, s.q += groups * Q_ROW;
    if (L::HIGH) s.high += groups * HIGH_ROW;
    s.scales += groups * (lane < 16 ? GROUPS : GROUPS / 4) * 16;
    return s;
  }

  ALWAYS void copy(u32 stage, int pair, int lane) {
    if (there >= 8 && (COLUMNS % 128 == 0 || 2 * pair + 1 < GROUPS)) copy_as<true>(stage, pair, lane);
    else copy_as<false>(stage, pair, lane);
  }

  template <bool ALL> ALWAYS void copy_as(u32 stage, int pair, int lane) {
    // Of a last group without a partner, the words stand in the first half.
    const int chunks = ALL || 2 * pair + 1 < GROUPS ? L::CHUNKS : L::CHUNKS / 2;
    const char *from = q + pair * (L::CHUNKS * 16);
    constexpr int STEP = 32 / L::CHUNKS;
    const u32 even = own_address(stage + (lane ^ (STEP == 2 && lane >= 16 ? L::TURN : 0)) * 16);
    const u32 odd = STEP == 2 ? even : own_address(stage + (lane ^ L::TURN) * 16);
#pragma unroll
    for (int i = 0; i < 8 / STEP; i++) {
      const u32 to = (i % 2 ? odd : even) + i * 512;
      bool is = ALL || (i * STEP + lane / L::CHUNKS < there && lane % L::CHUNKS < chunks);
      copy_one<ALL>(to, from + i * STEP * Q_ROW, is, q);
    }
    if (L::HIGH) {
      from = high + (L::TWO_BITS ? (pair >> 1) * 256 + (pair & 1) * 32 : (pair >> 1) * 128);
      const u32 to = own_address(stage + L::Q_BYTES + (lane ^ (lane / 8 % 2 * 2)) * 16);
#pragma unroll
      for (int i = 0; i < 2; i++) copy_one<ALL>(to + i * 512, from + i * 4 * HIGH_ROW, ALL || i * 4 + lane / 8 < there, high);
    }
    from = scales + (lane < 16 ? pair * 32 : (pair >> 1) * 16);
    bool row = (lane < 16 ? lane / 2 : lane % 8) < there;
    bool column = lane >= 16 || lane % 2 * (L::CHUNKS / 2) < chunks;
    const u32 to = own_address(stage + L::SCALES_AT + lane * 16);
    if (lane < (L::SMALL ? 16 : 24)) copy_one<ALL>(to, from, ALL || (row && column), scales);
  }

  // other: any address of the plane, if there is nothing to copy and the stage gets zeros.
  template <bool ALL> ALWAYS void copy_one(u32 to, const char *from, bool is, const char *other) const {
    if (ALL) copy16_from<0>(to, from, policy);
    else copy16_or_zero(to, is ? from : other, is, policy);
  }
};

// The factors of a group, each twice in a word: of its columns 0-15, 16-31, 32-47 and 48-63, and what is
// added to columns 0-31 and 32-63.
struct Factors {
  u32 a, b, c, d, low_least, top_least;
};

// Two bytes of a word, as 1024 more in float16. thousand: work.constant, the bits of float16 1024, twice.
DEVICE u32 thousands(u32 word, u32 thousand, bool upper) { return __byte_perm(word, thousand, upper ? 0x5352 : 0x5150); }

template <int FORMAT> DEVICE Factors factors_of(u32 scales, u32 supers, u32 thousand) {
  using L = Layout<FORMAT>;
  if (L::SMALL) {
    u32 low = low_twice(supers), top = high_twice(supers);
    return {low, low, top, top, 0, 0};
  }
  u32 d = low_twice(supers);
  if (!L::LEAST) {
    u32 word = scales ^ 0x80808080u;  // signed bytes, 128 more
    u32 both = mul_pairs(sub_pairs(thousands(word, thousand, false), 0x64806480u), d), second = both;
    if (FORMAT == Q6_K) second = mul_pairs(sub_pairs(thousands(word, thousand, true), 0x64806480u), d);
    return {low_twice(both), low_twice(second), high_twice(both), high_twice(second), 0, 0};
  }
  u32 both = mul_pairs(sub_pairs(thousands(scales, thousand, false), 0x64006400u), d);
  u32 least = mul_pairs(sub_pairs(thousands(scales, thousand, true), 0x64006400u), high_twice(supers) ^ 0x80008000u);
  if (FORMAT == Q4_K) {  // 16 and 1, and 2^-5; see unpack
    both = mul_pairs(both, 0x3C004C00u), least = mul_pairs(least, 0x28002800u);
  }
  u32 low = low_twice(both), top = high_twice(both);
  return {low, low, top, top, low_twice(least), high_twice(least)};
}

// A word of a row -> four pairs of weights: two of its low nibbles, two of its high nibbles.
// top: of 8-bit codes, the word 32 columns on; shift: to the group's bits in the word high; later: whether
// the word is in the second half of its group.
template <int FORMAT>
DEVICE void unpack(u32 *w, u32 q, u32 top, u32 high, int shift, const Factors &f, bool later, u32 thousand) {
  using L = Layout<FORMAT>;
  u32 a = later ? f.b : f.a, b = later ? f.d : f.c;
  if (FORMAT == Q4_K) {
    // A nibble n in bits 0 to 3 is the float16 n / 2^24, in bits 4 to 7 n / 2^20, numbers below the normal ones. 2^15
    // makes them n / 512 and n / 32, and their factors n / 32 times that of the group; y is multiplied by 32 in the
    // end. Shifts and masks take twice as long as products of pairs. A group's factor must be below 4094.
    const u32 upper = q >> 8;
    w[0] = q & 0x000F000Fu, w[1] = upper & 0x000F000Fu, w[2] = q & 0x00F000F0u, w[3] = upper & 0x00F000F0u;
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = fma_pairs(mul_pairs(w[i], 0x78007800u), i < 2 ? a : b, i < 2 ? f.low_least : f.top_least);
    return;
  }
  u32 near = q ^ 0x80808080u, far = top ^ 0x80808080u;
  if (FORMAT != Q8_0) {
    near = q & 0x0F0F0F0Fu, far = (q >> 4) & 0x0F0F0F0Fu;
    u32 bits = high >> shift;
    if (FORMAT == IQ4_XS) near = looked_up(near) ^ 0x80808080u, far = looked_up(far) ^ 0x80808080u;
    if (L::ONE_BIT) near |= (bits << 4) & 0x10101010u, far |= (bits << 3) & 0x10101010u;
    if (L::TWO_BITS) near |= (bits << 4) & 0x30303030u, far |= (bits << 2) & 0x30303030u;
  }
  w[0] = __byte_perm(near, thousand, 0x5250), w[1] = __byte_perm(near, thousand, 0x5351);
  w[2] = __byte_perm(far, thousand, 0x5250), w[3] = __byte_perm(far, thousand, 0x5351);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 code = sub_pairs(w[i], (0x6400 + L::OFFSET) * 0x10001u), factor = i < 2 ? a : b;
    w[i] = L::LEAST ? fma_pairs(code, factor, i < 2 ? f.low_least : f.top_least) : mul_pairs(code, factor);
  }
}

// See unpack.
DEVICE int row_group(int lane) { return lane >> 2; }
// Asked for before results are stored: between stores, each row's would be waited for. A lane has those of rows lane,
// 32 + lane, ...
struct RowFactors {
  float own[(X_ROWS + 31) / 32];

  ALWAYS RowFactors(const Work &work, int lane) {
#pragma unroll
    for (int i = 0; i < (X_ROWS + 31) / 32; i++) own[i] = 32 * i + lane < work.rows ? __ldcg(work.factor + 32 * i + lane) : 0;
  }
  template <int FORMAT> ALWAYS float of(int x_tile, int of_tile) const {
    float v = own[0];
#pragma unroll
    for (int i = 1; i < (X_ROWS + 31) / 32; i++)
      if (x_tile / 4 == i) v = own[i];
    return __shfl_sync(~0u, v, x_tile % 4 * 8 + of_tile) * (FORMAT == Q4_K ? 32 : 1);
  }
};

// -- products -------------------------------------------------------------------------------------------

// What a lane reads of a pair of groups of its warp's weights. Lane 4 g + c has rows 4 g to 4 g + 3.
template <int FORMAT> struct Pair {
  using L = Layout<FORMAT>;
  u32 stage, q_at, turn, thousand;
  int g, c, shift;
  bool both;  // lanes 0 and 1 have words of the first group, lanes 2 and 3 of the second, if there is one
  uint4 scales, supers;
  Factors f[4];

  ALWAYS Pair(u32 stage, int pair, int lane, u32 thousand) : stage(stage), thousand(thousand), g(lane >> 2), c(lane & 3) {
    both = COLUMNS % 128 == 0 || 2 * pair + 1 < COLUMNS / 64;
    const int group = both ? c >> 1 : 0;
    shift = L::TWO_BITS ? 4 * group : 2 * (group + 2 * (pair & 1));
    q_at = stage + g * L::CHUNKS * 16, turn = g & 1 ? L::TURN * 16 : 0;
    scales = supers = load16(stage + L::SCALES_AT + (g * 2 + group) * 16);
    if (!L::SMALL) supers = load16(stage + L::SUPERS_AT + g * 16);
  }

  ALWAYS void make_factors() {
#pragma unroll
    for (int r = 0; r < 4; r++) f[r] = factors_of<FORMAT>(row_of(scales, r), row_of(supers, r), thousand);
  }

  // A word of four rows; top and high: see unpack.
  struct Word {
    uint4 q, top, high;
    bool later;
  };

  ALWAYS Word load(int word) const {
    int chunk = 4 * word + c, step = 8;
    if (FORMAT == Q8_0 && both) {
      int of_group = 2 * word + c % 2;
      chunk = of_group / 4 * 8 + c / 2 * 4 + of_group % 4, step = 16;
    }
    Word w;
    w.q = w.top = w.high = load16(q_at + (chunk * 16 ^ turn)), w.later = word >= 2;
    if (FORMAT == Q8_0) w.top = load16(q_at + ((chunk + step) % 32 * 16 ^ turn));
    if (L::HIGH) {
      int chunk = both ? 2 * word + c % 2 : (4 * word + c) % 8;
      w.high = load16(stage + L::Q_BYTES + g * 128 + ((chunk ^ (g & 1 ? 2 : 0)) * 16));
    }
    return w;
  }

  // The left operands of rows 2 two and 2 two + 1 of a word: of low and of high nibbles.
  ALWAYS void unpack_rows(u32 (*a)[4], const Word &word, int two) const {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int r = 2 * two + i;
      u32 w[4];
      unpack<FORMAT>(w, row_of(word.q, r), row_of(word.top, r), row_of(word.high, r), shift, f[r], word.later, thousand);
      a[0][i] = w[0], a[0][2 + i] = w[1], a[1][i] = w[2], a[1][2 + i] = w[3];
    }
  }
};

// Adds the products of a pair with X_TILES tiles of x. sums[j] are of a lane's rows 4 g and 4 g + 1 times rows
// 8 j + 2 c and 8 j + 2 c + 1 of x, sums[X_TILES + j] of the two rows that follow.
#if WARPGROUPS
// Products of two rows of a word run while the next two rows are unpacked: a warp that asks for more of them waits
// for the tensor core. UNDER_WAY groups of them have operands of their own; the last ones are left under way. Calls
// ``ended`` when those of the pair before have ended, and ``load_ahead`` when all words of this one have been loaded: it
// may load the first word of the pair after.
template <int FORMAT, int X_TILES, int UNDER_WAY, typename Ended, typename LoadAhead>
DEVICE void add_pair(float (*sums)[4], Pair<FORMAT> &weights, typename Pair<FORMAT>::Word &next, u32 x, Ended ended, LoadAhead load_ahead) {
  weights.make_factors();
  const u64 described = X_IN_ROWS ? describe_rows(x) : describe(x);
  u32 a[UNDER_WAY + 1][2][4];
#pragma unroll
  for (int word = 0; word < 4; word++) {
    const auto read = next;
    const auto own = weights;  // load_ahead changes it
    if (word < 3) next = weights.load(word + 1);
    else load_ahead();
#pragma unroll
    for (int two = 0; two < 2; two++) {
      u32(*now)[4] = a[(2 * word + two) % (UNDER_WAY + 1)];
      wait_for_products<UNDER_WAY>();
      if (2 * word + two == UNDER_WAY) ended();
      own.unpack_rows(now, read, two);
      begin_products();
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int step = X_IN_ROWS ? word / 2 * X_TILES * 1024 + word % 2 * 64 + half * 32 : word * X_TILES * 512 + half * 256;
        multiply_warpgroup<X_TILES>(sums + two * X_TILES, now[half], described + (step >> 4));
      }
      end_of_products();
    }
  }
}
#else
template <int FORMAT, int X_TILES> DEVICE void add_pair(float (*sums)[4], u32 stage, u32 x, int pair, int lane, u32 thousand) {
  Pair<FORMAT> weights(stage, pair, lane, thousand);
  weights.make_factors();
#pragma unroll
  for (int word = 0; word < 4; word++) {
    u32 a[2][2][4];
    const auto read = weights.load(word);
    weights.unpack_rows(a[0], read, 0), weights.unpack_rows(a[1], read, 1);
#pragma unroll
    for (int j = 0; j < X_TILES; j++) {
      uint4 b = load16(x + ((word * X_TILES + j) * 32 + lane) * 16);
      multiply(sums[j], a[0][0], b.x, b.y);
      multiply(sums[X_TILES + j], a[1][0], b.x, b.y);
      multiply(sums[j], a[0][1], b.z, b.w);
      multiply(sums[X_TILES + j], a[1][1], b.z, b.w);
    }
  }
}
#endif
