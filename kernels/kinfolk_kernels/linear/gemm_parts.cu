// What kernels of packed matrices share: instructions, formats, copies of weights, and shares of work.
//
// A file that includes this one defines before: UNIT, the columns that a warp multiplies at a time, and
// BY_GROUPS, whether the four lanes of a row read words of one group together or of two groups. It defines
// y_factor, and ends with gemm_segments.cu.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
#define DEVICE static __device__ __forceinline__
#define ALWAYS __device__ __forceinline__

enum { Q4_K, Q5_K, Q6_K, Q8_0, Q4_0, Q5_0, IQ4_XS };  // planes.LAYOUTS numbers them so

constexpr int WARPS = ROW_WARPS * COLUMN_WARPS;
constexpr int TILE = 32 * ROW_WARPS;     // rows of a matrix
constexpr int X_ROWS = 8 * ROW_TILES;
constexpr int SUMS = X_ROWS;             // of a lane: 32 rows times X_ROWS among 32 lanes

struct Matrix {
  const char *q, *high, *scales, *supers;
  void *y;
  int rows, end;  // end: of its programs
};

// thousand: the bits of float16 1024, twice. As a constant of the code, the assembler would move it to a
// register anew for every use.
struct Work {
  const char *x;
  const float *factor;
  float *part;
  int *done;
  int rows, share, span;
  u32 thousand;
};

// -- instructions ---------------------------------------------------------------------------------------

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void copy16(u32 to, const void *from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from));
}
DEVICE void copy16_or_zero(u32 to, const void *from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}
DEVICE void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
DEVICE uint4 load16(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
DEVICE void barrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory"); }
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
               "@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
DEVICE void bulk_copy(u32 to, const void *from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
DEVICE void column_warps_wait(int barrier) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(32 * COLUMN_WARPS) : "memory"); }
DEVICE void column_warps_arrive(int barrier) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(32 * COLUMN_WARPS) : "memory"); }
DEVICE int acquire(const int *flag) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
  return v;
}
DEVICE int count_up(int *counter) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
DEVICE void release(int *flag, int v) { asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(v) : "memory"); }
DEVICE void wait_for_producers() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void start_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

DEVICE u32 sub_pairs(u32 a, u32 b) { u32 r; asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEVICE u32 mul_pairs(u32 a, u32 b) { u32 r; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEVICE u32 fma_pairs(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEVICE u32 low_twice(u32 a) { return __byte_perm(a, a, 0x1010); }
DEVICE u32 high_twice(u32 a) { return __byte_perm(a, a, 0x3232); }
DEVICE void multiply(float *sums, const u32 *a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if Y_TYPE == 0
typedef float Y;
DEVICE Y as_y(float v) { return v; }
#else
typedef u16 Y;
DEVICE Y as_y(float v) {
  u16 r;
#if Y_TYPE == 1
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
#endif
  return r;
}
#endif

// -- formats --------------------------------------------------------------------------------------------

template <int FORMAT> struct Layout {
  static constexpr bool SMALL = FORMAT == Q8_0 || FORMAT == Q4_0 || FORMAT == Q5_0;  // blocks of 32
  static constexpr bool LEAST = FORMAT == Q4_K || FORMAT == Q5_K;                    // blocks have a minimum
  static constexpr bool ONE_BIT = FORMAT == Q5_K || FORMAT == Q5_0, TWO_BITS = FORMAT == Q6_K;  // above the nibble
  static constexpr bool HIGH = ONE_BIT || TWO_BITS;
  // A chunk is a word of four rows, 16 bytes. A stage has the chunks of a pair of eight groups of four rows.
  static constexpr int CHUNKS = FORMAT == Q8_0 ? 32 : 16;
  static constexpr int Q_BYTES = 8 * CHUNKS * 16, HIGH_BYTES = HIGH ? 8 * 8 * 16 : 0;
  static constexpr int SCALES_AT = Q_BYTES + HIGH_BYTES, SUPERS_AT = SCALES_AT + 8 * 2 * 16;
  static constexpr int STAGE = SUPERS_AT + (SMALL ? 0 : 8 * 16);
  static constexpr int TURN = (FORMAT == Q8_0) == BY_GROUPS ? 4 : 2, HIGH_TURN = BY_GROUPS ? 4 : 2;  // see Source
  static constexpr int OFFSET = FORMAT == Q6_K ? 32 : FORMAT == Q5_0 ? 16 : FORMAT == Q4_0 ? 8 : LEAST ? 0 : 128;
};

// What the lanes of a warp copy: the chunks of eight groups of four rows, pair by pair. The chunks of odd
// groups are exchanged in their stage, chunk i with i ^ TURN (high bits: HIGH_TURN), so that lanes read
// from different banks.
template <int FORMAT> struct Source {
  using L = Layout<FORMAT>;
  static constexpr int GROUPS = COLUMNS / 64;
  static constexpr u32 Q_ROW = (u32)GROUPS * L::CHUNKS / 2 * 16;
  static constexpr u32 HIGH_ROW = L::TWO_BITS ? (u32)COLUMNS : (u32)((COLUMNS + 255) / 256 * 8 * 16);
  const char *q, *high, *scales;  // of the lane, at the first pair
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

  ALWAYS void copy(u32 stage, int pair, int lane) {
    if (there >= 8 && (COLUMNS % 128 == 0 || 2 * pair + 1 < GROUPS)) copy_as<true>(stage, pair, lane);
    else copy_as<false>(stage, pair, lane);
  }

  template <bool ALL> ALWAYS void copy_as(u32 stage, int pair, int lane) {
    // Of a last group without a partner, the words stand in the first half.
    const int chunks = ALL || 2 * pair + 1 < GROUPS ? L::CHUNKS : L::CHUNKS / 2;
    const char *from = q + pair * (L::CHUNKS * 16);
    constexpr int STEP = 32 / L::CHUNKS;
#pragma unroll
    for (int i = 0; i < 8 / STEP; i++) {
      bool odd = STEP == 2 ? lane / 16 : i % 2;
      u32 to = stage + i * 512 + (lane ^ (odd ? L::TURN : 0)) * 16;
      bool is = ALL || (i * STEP + lane / L::CHUNKS < there && lane % L::CHUNKS < chunks);
      copy_one<ALL>(to, from + i * STEP * Q_ROW, is, q);
    }
    if (L::HIGH) {
      from = high + (L::TWO_BITS ? (pair >> 1) * 256 + (pair & 1) * 32 : (pair >> 1) * 128);
      u32 to = stage + L::Q_BYTES + (lane ^ (lane / 8 % 2 * L::HIGH_TURN)) * 16;
#pragma unroll
      for (int i = 0; i < 2; i++) copy_one<ALL>(to + i * 512, from + i * 4 * HIGH_ROW, ALL || i * 4 + lane / 8 < there, high);
    }
    from = scales + (lane < 16 ? pair * 32 : (pair >> 1) * 16);
    bool row = (lane < 16 ? lane / 2 : lane % 8) < there;
    bool column = lane >= 16 || lane % 2 * (L::CHUNKS / 2) < chunks;
    if (lane < (L::SMALL ? 16 : 24)) copy_one<ALL>(stage + L::SCALES_AT + lane * 16, from, ALL || (row && column), scales);
  }

  // other: any address of the plane, if there is nothing to copy and the stage gets zeros.
  template <bool ALL> ALWAYS void copy_one(u32 to, const char *from, bool is, const char *other) {
    if (ALL) copy16(to, from);
    else copy16_or_zero(to, is ? from : other, is);
  }
};

// The factors of a group, each twice in a word: of its columns 0-15, 16-31, 32-47 and 48-63, and what is

// Four nibbles in bytes -> four values of the non-linear table, as signed bytes.
DEVICE u32 looked_up(u32 codes) {
  u32 i = codes & 0x07070707u;
  i |= i >> 4;
  i = (i & 0xff) | ((i >> 8) & 0xff00);
  u32 lower = __byte_perm(0xbfad9881u, 0xf6eaddcfu, i), upper = __byte_perm(0x26190d01u, 0x71594535u, i);
  u32 is_upper = ((codes >> 3) & 0x01010101u) * 0xffu;
  return (lower & ~is_upper) | (upper & is_upper);
}

DEVICE u32 row_of(const uint4 &v, int r) { return r == 0 ? v.x : r == 1 ? v.y : r == 2 ? v.z : v.w; }

// -- shares of work -------------------------------------------------------------------------------------

// What the products of a row of x are multiplied by in the end.
template <int FORMAT> DEVICE float y_factor(const Work &work, int row);

// The rounds of a program: a unit of each column warp, tile after tile of its share. Units are pairs of
// groups, or two pairs.
struct Rounds {
  int tile, last_tile, pair, end, stop, span;

  ALWAYS Rounds(const Work &work, int start, int stop) : stop(stop), span(work.span) {
    tile = start / span, last_tile = (stop - 1) / span;
    pair = start - tile * span, end = end_of();
  }
  ALWAYS int end_of() const { return min(stop - tile * span, (COLUMNS + UNIT - 1) / UNIT); }
  ALWAYS bool over() const { return tile > last_tile; }
  // Returns whether the next round is of another tile.
  ALWAYS bool next() {
    pair += COLUMN_WARPS;
    if (pair < end) return false;
    tile++, pair = 0, end = end_of();
    return true;
  }
};

// A place in a ring of stages, and the parity of the turn around it.
template <int STAGES> struct Ring {
  int stage = 0, turn = 0;
  ALWAYS void next() {
    if (++stage == STAGES) stage = 0, turn ^= 1;
  }
};

// A lane's rows of the matrix times its two rows of a tile of x.
template <int FORMAT>
DEVICE void write_tile(const float *first, const float *second, int x_tile, const Matrix &m, const Work &work, int first_row, int lane) {
  const int n = first_row + (lane >> 2) * 4;
  if (n >= m.rows) return;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int row = x_tile * 8 + 2 * (lane & 3) + e;
    if (row >= work.rows) continue;
    const float factor = y_factor<FORMAT>(work, row);
    __align__(16) Y v[4] = {as_y(first[e] * factor), as_y(first[2 + e] * factor),
                            as_y(second[e] * factor), as_y(second[2 + e] * factor)};
    Y *to = (Y *)m.y + (u64)row * m.rows + n;
    if (m.rows % 4 == 0) {
      if (sizeof(Y) == 2) *(uint2 *)to = *(uint2 *)v;
      else *(uint4 *)to = *(uint4 *)v;
    } else {
#pragma unroll
      for (int r = 0; r < 4; r++)
        if (n + r < m.rows) to[r] = v[r];
    }
  }
}

template <int FORMAT> DEVICE void write_y(float (*sums)[4], const Matrix &m, const Work &work, int first_row, int lane) {
#pragma unroll
  for (int j = 0; j < ROW_TILES; j++) write_tile<FORMAT>(sums[j], sums[ROW_TILES + j], j, m, work, first_row, lane);
}

// A warp's sums as a lane leaves them for another warp: one of each lane side by side.
DEVICE void add_sums(float (*sums)[4], const float *from, bool global) {
#pragma unroll
  for (int i = 0; i < SUMS; i++) sums[i / 4][i % 4] += global ? __ldcg(from + i * 32) : from[i * 32];
}

