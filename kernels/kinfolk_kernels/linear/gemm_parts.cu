// What kernels of packed matrices share: instructions, formats, copies of weights, and shares of work.
//
// A file that includes this one defines before: UNIT, the columns that a warp multiplies at a time, and TENSOR_MAPS,
// whether it copies weights by tensor maps; and after: RowFactors and row_group. It ends with gemm_segments.cu.

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

// -- instructions ---------------------------------------------------------------------------------------

// What the driver has encoded of an address, sizes, strides, and what is copied at a time.
struct __align__(64) TensorMap {
  char bytes[128];
};

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
// A copy with the offset in the instruction, and a policy of the second-level cache. See own_address.
template <int OFFSET> DEVICE void copy16_from(u32 to, const void *from, u64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1 + %2], 16, %3;" ::"r"(to), "l"(from), "n"(OFFSET), "l"(policy));
}
DEVICE void copy16_or_zero(u32 to, const void *from, bool there, u64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(there ? 16 : 0), "l"(policy));
}
DEVICE void copy16(u32 to, const void *from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from));
}
// The lane's address, in one register. Where the assembler knows a part of it that all lanes have in common, it makes
// a copy of two parts and a policy, which devices of sm_90 refuse as an illegal instruction.
DEVICE u32 own_address(u32 at) { return __shfl_sync(~0u, at, threadIdx.x % 32); }
DEVICE void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
DEVICE uint4 load16(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
DEVICE float2 load_two(u32 at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
  return v;
}
DEVICE uint2 load8(u32 at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
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
// One thread asks for a box of a tensor, whose bytes the barrier waits for: copy_rows at a word and a row, copy_blocks
// at a row and a block of 128 bytes. What lies outside of the tensor is zero.
DEVICE void copy_rows(u32 to, const TensorMap &from, int column, int row, u32 barrier, u64 policy) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
               "l"(&from), "r"(column), "r"(row), "r"(barrier), "l"(policy) : "memory");
}
DEVICE void copy_blocks(u32 to, const TensorMap &from, int row, int block, u32 barrier, u64 policy) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
               "l"(&from), "r"(0), "r"(row), "r"(block), "r"(barrier), "l"(policy) : "memory");
}
// A number that stays in its register; the compiler might compute it in every round.
DEVICE u32 kept(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}
// True for one lane of a warp, always the same one. Of ``lane == 0`` the compiler does not know that it is one, and
// makes a loop around each copy.
DEVICE bool elected() {
  u32 r;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, one;\n}" : "=r"(r));
  return r;
}
// Makes barriers that the thread has set known to copies.
DEVICE void barriers_are_set() { asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory"); }
// An arrival at a barrier when the thread's copies have ended.
DEVICE void arrive_with_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
// Registers of a thread, from here on; all warps of four take or give them.
template <int COUNT> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
// THREADS of a program wait for each other.
template <int THREADS> DEVICE void wait_together(int barrier) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory"); }
DEVICE void column_warps_wait(int barrier) { wait_together<32 * COLUMN_WARPS>(barrier); }
DEVICE int count_up(int *counter) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
// Words that programs exchange while they run.
DEVICE uint4 load_of_others(const u32 *at) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}
DEVICE void store_for_others(u32 *at, const uint4 &v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE void wait_for_producers() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void start_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

DEVICE u32 sub_pairs(u32 a, u32 b) { u32 r; asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEVICE u32 mul_pairs(u32 a, u32 b) { u32 r; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEVICE u32 fma_pairs(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// Two numbers as float16, those that are too large as the largest.
DEVICE u32 halves_of(float low, float high) {
  u32 r;
  asm("{ .reg .b32 v;\ncvt.rn.f16x2.f32 v, %2, %1;\nmin.f16x2 v, v, %3;\nmax.f16x2 %0, v, %4; }" : "=r"(r) : "f"(low), "f"(high), "r"(0x7BFF7BFFu), "r"(0xFBFFFBFFu));
  return r;
}
// Written as halves, so that an instruction for pairs selects the half itself.
DEVICE u32 low_twice(u32 a) {
  u32 r;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }" : "=r"(r) : "r"(a));
  return r;
}
DEVICE u32 high_twice(u32 a) {
  u32 r;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }" : "=r"(r) : "r"(a));
  return r;
}
DEVICE void multiply(float *sums, const u32 *a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 16 x 32 bytes, signed or not, times 32 x 8 signed bytes, added to d.
template <bool UNSIGNED> DEVICE void multiply_bytes(int *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if (UNSIGNED)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The first 16 columns of that: a0, a1, b0.
DEVICE void multiply_half(int *d, u32 a0, u32 a1, u32 b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
// 16 x 16 times 16 x 8 bfloat16.
DEVICE void multiply_bf16(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Two numbers from 0 to 127, which are the upper bytes of a word, negated, as bfloat16.
DEVICE u32 minus_upper_bytes(u32 word) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(__byte_perm(word, 0x43004300u, 0x5352)), "r"(0xBF80BF80u), "r"(0x43004300u));
  return r;
}
DEVICE float float_of_half(u32 bits) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((u16)bits));
  return r;
}
template <int BYTE> DEVICE int signed_byte(u32 word) {
  u32 r;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(word), "n"(0x8880 + 0x1111 * BYTE));
  return (int)r;
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

// -- arguments ------------------------------------------------------------------------------------------

#if TENSOR_MAPS
typedef TensorMap Plane;
#else
typedef const char *Plane;
#endif

struct Matrix {
  Plane q, high, scales, supers;
  void *y;
  int rows, end;  // end: of its programs
};

// x: its address, or that of its tensor map. x_bytes: of a part of X_ROWS rows of x; first_row: of the program's part. constant: of the kernel; if it were one
// of the code, the assembler would move it to a register anew for every use. policy: of the second-level cache, for
// weights.
struct Work {
  const char *x;
  const float *factor;
  float *part;
  u64 x_bytes;
  int first_row, rows, share, span;
  u32 constant;
  u64 policy;
};

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
  static constexpr int TURN = FORMAT == Q8_0 ? 2 : 4;  // see Source
  static constexpr int OFFSET = FORMAT == Q6_K ? 32 : FORMAT == Q5_0 ? 16 : FORMAT == Q4_0 ? 8 : LEAST ? 0 : 128;
};

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

// What the products of rows of x are multiplied by in the end. All lanes of a warp ask for it.
struct RowFactors;
// Which four of the 32 rows of a warp a lane has.
DEVICE int row_group(int lane);

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
template <int FORMAT, typename Factors>
DEVICE void write_tile(const float *first, const float *second, int x_tile, const Factors &factors, const Matrix &m, const Work &work, int first_row, int lane) {
  const int n = first_row + row_group(lane) * 4;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int of_tile = 2 * (lane & 3) + e, row = x_tile * 8 + of_tile;
    const float factor = factors.template of<FORMAT>(x_tile, of_tile);
    if (n >= m.rows || row >= work.rows) continue;
    __align__(16) Y v[4] = {as_y(first[e] * factor), as_y(first[2 + e] * factor),
                            as_y(second[e] * factor), as_y(second[2 + e] * factor)};
    Y *to = (Y *)m.y + (u64)(work.first_row + row) * m.rows + n;
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
