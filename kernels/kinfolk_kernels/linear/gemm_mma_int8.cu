// Packed matrices times 2 to 32 int8 rows on tensor cores, for sm_90.
//
// A warp multiplies 32 rows of a matrix with all rows of x, a unit of four groups (256 columns) at a time.
// ROW_WARPS warps of a program take other rows, and COLUMN_WARPS as many other units of the same rows;
// their sums are added in shared memory. One lane of each warp copies the warp's weights to shared memory, some
// units ahead, and waits for no other warp. The warps of the same units take turns to copy x.
//
// The four lanes of a row read words of one group, so the tensor core adds 32 products of one scale: a whole
// number, which is multiplied by the whole scale. Numbers are converted to float32 once for 64 columns, as x
// has a scale for each 64, and multiplied by the scale of a block once for 256. Minima are multiplied with
// sums of x.
//
// Compiled in: ROW_TILES (of eight rows of x), ROW_WARPS, COLUMN_WARPS, X_STAGES, WEIGHT_BYTES (shared memory
// for the weights of a warp), MOST_STAGES (of them), COLUMNS, Y_TYPE, F0 to F3.

constexpr int UNIT = 256;  // columns
#define TENSOR_MAPS 1
#include "gemm_parts.cu"

constexpr int UNITS = (COLUMNS + UNIT - 1) / UNIT, GROUPS = COLUMNS / 64;
constexpr int PARTS = 1;    // of sums that a program leaves
// Whether a matrix has minima. Its blocks are units, so no unit is cut off.
constexpr bool HAS_LEAST = Layout<F0>::LEAST || Layout<F1>::LEAST || Layout<F2>::LEAST || Layout<F3>::LEAST;
static_assert(!HAS_LEAST || COLUMNS % UNIT == 0);
// A unit of x in shared memory: a tile of eight rows after the other, group by group, 16 bytes for each lane;
// then a scale for each group and row, then sums for each row and group.
constexpr int X_WORDS = 4 * ROW_TILES * 512, X_SUMS = X_WORDS + 4 * X_ROWS * 4;
constexpr int X_UNIT = X_SUMS + (HAS_LEAST ? 4 * X_ROWS * 8 : 0);
// Bytes of shared memory in which barriers stand: two of each stage of x, one of each stage of weights.
constexpr int X_BARRIERS = COLUMN_WARPS * X_STAGES * 16;
constexpr int HEADER = (X_BARRIERS + WARPS * MOST_STAGES * 8 + 127) / 128 * 128;

struct RowFactors {
  template <int FORMAT> ALWAYS float of(int, int) const { return 1; }
};
// Lanes that read at the same time have groups g and g ^ 6: the eight 16 bytes that they read of two groups are
// distinct modulo 128 bytes, see Weights.
DEVICE int row_group(int lane) { return lane >> 3 ^ (lane & 4 ? 6 : 0); }

// -- x --------------------------------------------------------------------------------------------------

constexpr u64 STAYS = 0x1000000000000000;  // the usual policy of the second-level cache

// One thread copies a unit of ``Int8Rows`` to a stage: work.x is the map of its words, and work.factor has the scales,
// with the sums behind them.
DEVICE void copy_rows_of_x(u32 stage, const Work &work, int unit, u32 barrier) {
  const u32 scales = (COLUMNS % UNIT == 0 ? 4 : min(4, GROUPS - 4 * unit)) * X_ROWS * 4, sums = HAS_LEAST ? X_ROWS * 32 : 0;
  const char *beside = (const char *)work.factor;
  barrier_expect(barrier, X_WORDS + scales + sums);
  copy_blocks(stage, *(const TensorMap *)work.x, 0, 4 * unit, barrier, STAYS);
  bulk_copy(stage + X_WORDS, beside + unit * (4 * X_ROWS * 4), scales, barrier);
  if (HAS_LEAST) bulk_copy(stage + X_SUMS, beside + GROUPS * X_ROWS * 4 + unit * (X_ROWS * 32), sums, barrier);
}

// -- formats --------------------------------------------------------------------------------------------

// A stage of a warp's weights, of each plane: 16 bytes are a word of four rows, and a warp has eight groups of four
// rows. A unit has 32 words of q, or 64 of 8-bit codes, which take two stages. Tensor maps (gemm_mma_int8.py) say
// how they are stored: q and high in blocks of 128 bytes of each group, whose 16 bytes i stand at i ^ group; scales
// and supers group after group.
template <int FORMAT> struct Stage : Layout<FORMAT> {
  using L = Layout<FORMAT>;
  static constexpr int OF_UNIT = FORMAT == Q8_0 ? 2 : 1, OF_GROUPS = 4 / OF_UNIT;
  static constexpr int Q = 8 * 512, Q_BLOCKS = 4, HIGH_BLOCKS = L::TWO_BITS ? 2 : L::ONE_BIT ? 1 : 0, HIGH = HIGH_BLOCKS * 1024;
  static constexpr int SCALES = 8 * OF_GROUPS * 16, SUPERS = L::SMALL ? 0 : 8 * 16;
  static constexpr int BYTES = Q + HIGH + SCALES + SUPERS;
};

// Where the stages of a warp are in shared memory. The planes of all warps follow one another, as blocks must begin at
// multiples of 1024 bytes.
template <int FORMAT, int STAGES> struct Stages {
  using S = Stage<FORMAT>;
  u32 q, high, scales;

  ALWAYS Stages(u32 base, int warp)
      : q(base + warp * STAGES * S::Q), high(base + WARPS * STAGES * S::Q + warp * STAGES * S::HIGH),
        scales(base + WARPS * STAGES * (S::Q + S::HIGH) + warp * STAGES * (S::SCALES + S::SUPERS)) {}
  // One thread copies stage n of the rows from group ``row`` on. ``barrier`` waits for its bytes.
  ALWAYS void copy(int stage, const Matrix &m, int row, int n, u32 barrier, u64 policy) const {
    const u32 to = scales + stage * (S::SCALES + S::SUPERS);
    barrier_expect(barrier, S::BYTES);
    copy_blocks(q + stage * S::Q, m.q, row, n * S::Q_BLOCKS, barrier, policy);
    if (S::HIGH) copy_blocks(high + stage * S::HIGH, m.high, row, n * S::HIGH_BLOCKS, barrier, policy);
    copy_rows(to, S::SMALL ? m.supers : m.scales, n * S::OF_GROUPS * 4, row, barrier, policy);
    if (!S::SMALL) copy_rows(to + S::SCALES, m.supers, n * 4, row, barrier, policy);
  }
};

DEVICE u32 shifted(u32 word, int left) { return left < 0 ? word >> -left : word << left; }

// The low and the high nibbles of a word with the bits above them, as bytes for the tensor core. They are codes
// or, where the offset is subtracted, numbers, and LOW_FACTOR or TOP_FACTOR times too large.
// group: of the unit; upper: work.constant, the upper bit of each byte.
template <int FORMAT> DEVICE void bytes_of(u32 &low, u32 &top, u32 q, u32 high, int group, u32 upper) {
  const int bit = 2 * group, two = 4 * (group & 1);
  if (FORMAT == Q4_K) low = q & 0x0F0F0F0Fu, top = q & 0xF0F0F0F0u;
  if (FORMAT == Q5_K) {
    low = (q & 0x0F0F0F0Fu) | (shifted(high, 4 - bit) & 0x10101010u);
    top = (q >> 4 & 0x0F0F0F0Fu) | (shifted(high, 3 - bit) & 0x10101010u);
  }
  if (FORMAT == Q6_K) {
    low = (q << 2 & 0x3C3C3C3Cu) | ((shifted(high, 6 - two) & 0xC0C0C0C0u) ^ upper);  // 32 less in each code
    top = (q >> 2 & 0x3C3C3C3Cu) | ((shifted(high, 4 - two) & 0xC0C0C0C0u) ^ upper);
  }
  if (FORMAT == Q4_0) low = (q << 4 ^ 0x80808080u) & 0xF0F0F0F0u, top = (q ^ 0x80808080u) & 0xF0F0F0F0u;
  if (FORMAT == Q5_0) {
    low = (q << 3 & 0x78787878u) | (~shifted(high, 7 - bit) & 0x80808080u);
    top = (q >> 1 & 0x78787878u) | (~shifted(high, 6 - bit) & 0x80808080u);
  }
  if (FORMAT == IQ4_XS) low = looked_up(q & 0x0F0F0F0Fu), top = looked_up(q >> 4 & 0x0F0F0F0Fu);
}
template <int FORMAT> constexpr int TOP_FACTOR = FORMAT == Q4_K || FORMAT == Q4_0 ? 16 : FORMAT == Q5_0 ? 8 : FORMAT == Q6_K ? 4 : 1;
// Whole scales make up for it where it differs.
template <int FORMAT> constexpr int LOW_FACTOR = FORMAT == Q4_K ? 1 : TOP_FACTOR<FORMAT>;

// The whole scales of a row in a group: of its columns 0-15, 16-31, 32-47 and 48-63.
struct WholeScales {
  int a, b, c, d;
};
template <int FORMAT> DEVICE WholeScales whole_scales(u32 word) {
  if (FORMAT == Q6_K) return {signed_byte<0>(word), signed_byte<2>(word), signed_byte<1>(word), signed_byte<3>(word)};
  int low = word & 255, top = __byte_perm(word, 0, 0x4441);
  if (FORMAT == IQ4_XS) low = signed_byte<0>(word), top = signed_byte<1>(word);
  if (LOW_FACTOR<FORMAT> != TOP_FACTOR<FORMAT>) low = __dp4a(word, (u32)TOP_FACTOR<FORMAT>, 0u);  // of the lowest byte
  return {low, low, top, top};
}

// -- products -------------------------------------------------------------------------------------------

// What a lane reads of a stage of its warp's weights. A lane has the four rows of row_group, and of each group of
// columns words c and c + 4 or, of 8-bit codes, c, c + 4, c + 8 and c + 12, where c is the lane modulo 4.
template <int FORMAT> struct Weights {
  using S = Stage<FORMAT>;
  static constexpr int RUN = FORMAT == Q8_0 ? 4 : 2;
  // Places of the lane: of words of a run in a block, of words side by side, among scales, among supers.
  u32 run, four, row, own;
  u32 q, high, scales;  // of the stage

  ALWAYS Weights(int lane) : q(0), high(0), scales(0) {
    const int g = row_group(lane), c = lane & 3;
    run = kept(g * 128 + ((c / RUN * 2 * RUN + c % RUN) ^ g) * 16), four = kept(g * 128 + (c ^ g) * 16);
    row = kept(g * S::OF_GROUPS * 16), own = kept(g * 16);
  }
  template <int STAGES> ALWAYS void begin(const Stages<FORMAT, STAGES> &stages, int stage) {
    q = stages.q + stage * S::Q, high = stages.high + stage * S::HIGH;
    scales = stages.scales + stage * (S::SCALES + S::SUPERS);
  }
  // Word c + 4 k of a group of the stage; alone: a last group without a partner, whose words do not alternate.
  ALWAYS uint4 word(int group, int k, bool alone) const {
    if (alone) return load16(q + (four ^ k % 2 * 64) + (group / 2 * 2 + k / 2) * 1024);
    return load16(q + (run ^ group % 2 * RUN * 16) + (group / 2 * 2 + k) * 1024);
  }
  // Bits above the nibbles: word c + 4 k of the unit or, of two bits a code, of a pair of groups.
  ALWAYS uint4 above(int pair, int k) const {
    if (S::TWO_BITS) return load16(high + (run ^ pair * 32) + k * 1024);
    return load16(high + (four ^ k * 64));
  }
  ALWAYS uint4 scales_of(int group) const { return load16(scales + row + group * 16); }
  ALWAYS uint4 supers() const { return load16(scales + own + S::SCALES); }
};

// The products of a group of two rows of four, ``half`` says which, with eight rows of x.
template <int FORMAT> struct Products {
  u32 a[8];  // left operands of 32 columns each, for low and for high nibbles
  WholeScales whole[2];
  float d[2][2];

  ALWAYS Products(const uint4 (&q)[4], const uint4 (&high)[2], const uint4 &scales, int half, int group, u32 upper) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = 2 * half + r;
      if (FORMAT == Q8_0) {
#pragma unroll
        for (int k = 0; k < 4; k++) a[2 * k + r] = row_of(q[k], row);
      } else {
        bytes_of<FORMAT>(a[r], a[4 + r], row_of(q[0], row), row_of(high[0], row), group, upper);
        bytes_of<FORMAT>(a[2 + r], a[6 + r], row_of(q[1], row), row_of(high[1], row), group, upper);
      }
      const u32 word = row_of(scales, row);
      if (Layout<FORMAT>::SMALL) {
        d[r][0] = float_of_half(word) / TOP_FACTOR<FORMAT>, d[r][1] = float_of_half(word >> 16) / TOP_FACTOR<FORMAT>;
      } else whole[r] = whole_scales<FORMAT>(word);
    }
  }

  // x: the lane's words of a row; scales: of its rows 2 c and 2 c + 1 of x.
  ALWAYS void add(float *sums, const uint4 &x, const float2 &scales) const {
    constexpr bool UNSIGNED = Layout<FORMAT>::LEAST;
    int low[4] = {}, top[4] = {};
    if (FORMAT == Q6_K) {
      int far[4] = {}, far_top[4] = {};
      multiply_half(low, a[0], a[1], x.x), multiply_half(far, a[2], a[3], x.y);
      multiply_half(top, a[4], a[5], x.z), multiply_half(far_top, a[6], a[7], x.w);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const WholeScales &s = whole[k / 2];
        sums[k] += (float)(low[k] * s.a + far[k] * s.b + top[k] * s.c + far_top[k] * s.d) * (k % 2 ? scales.y : scales.x);
      }
      return;
    }
    multiply_bytes<UNSIGNED>(low, a[0], a[1], a[2], a[3], x.x, x.y);
    multiply_bytes<UNSIGNED>(top, a[4], a[5], a[6], a[7], x.z, x.w);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float scale = k % 2 ? scales.y : scales.x;
      // Written out, so that the same product is the rounded one in every row of x.
      if (Layout<FORMAT>::SMALL) sums[k] += fmaf((float)low[k], d[k / 2][0], (float)top[k] * d[k / 2][1]) * scale;
      else sums[k] += (float)(low[k] * whole[k / 2].a + top[k] * whole[k / 2].c) * scale;
    }
  }
};

// Adds the products of a unit. sums[j] are of the first two of a lane's four rows times rows 8 j + 2 c and 8 j + 2 c + 1
// of x, sums[ROW_TILES + j] of the two rows that follow. next() takes the unit's next stage. is: whether there is such
// a unit; if not, its stages are passed over.
template <int FORMAT, typename Next>
DEVICE void add_unit(float (*sums)[4], Weights<FORMAT> &weights, u32 x, int unit, bool is, int lane, u32 upper, Next next) {
  using L = Layout<FORMAT>;
  constexpr bool ONE_STAGE = Stage<FORMAT>::OF_UNIT == 1;
  const int c = lane & 3;
  if (ONE_STAGE) next();
  if (ONE_STAGE && !is) return;
  float in_unit[2 * ROW_TILES][4] = {};
  float(*added)[4] = L::SMALL ? sums : in_unit;
  uint4 supers = {}, least = {};  // least: scales and minima of the lane's own group c
#pragma unroll
  for (int group = 0; group < 4; group++) {
    const int of_stage = group % Stage<FORMAT>::OF_GROUPS;
    if (!ONE_STAGE && of_stage == 0) next();
    if (!ONE_STAGE && !is) continue;
    if (COLUMNS % UNIT != 0 && unit * 4 + group >= GROUPS) continue;
    const bool alone = COLUMNS % 128 != 0 && group % 2 == 0 && unit * 4 + group + 1 == GROUPS;
    if (group == 0 && !L::SMALL) supers = weights.supers();
    if (group == 0 && L::LEAST) least = weights.scales_of(c);
    uint4 q[4] = {weights.word(of_stage, 0, alone), weights.word(of_stage, 1, alone)}, high[2] = {};
    if (FORMAT == Q8_0) q[2] = weights.word(of_stage, 2, alone), q[3] = weights.word(of_stage, 3, alone);
    if (L::HIGH) high[0] = weights.above(group / 2, 0), high[1] = weights.above(group / 2, 1);
    const uint4 scales = weights.scales_of(of_stage);
    uint4 words[ROW_TILES];
    float2 d[ROW_TILES];
#pragma unroll
    for (int j = 0; j < ROW_TILES; j++) {
      words[j] = load16(x + ((group * ROW_TILES + j) * 32 + lane) * 16);
      d[j] = load_two(x + X_WORDS + (group * X_ROWS + 8 * j + 2 * c) * 4);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const Products<FORMAT> products(q, high, scales, half, group, upper);
#pragma unroll
      for (int j = 0; j < ROW_TILES; j++) products.add(added[half * ROW_TILES + j], words[j], d[j]);
    }
  }
  if (L::SMALL) return;
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const float factor = float_of_half(row_of(supers, r)) / TOP_FACTOR<FORMAT>;
#pragma unroll
    for (int j = 0; j < ROW_TILES; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int at = r / 2 * ROW_TILES + j, k = r % 2 * 2 + e;
        sums[at][k] += in_unit[at][k] * factor;
      }
  }
  if (!L::LEAST) return;
#pragma unroll
  for (int j = 0; j < ROW_TILES; j++) {
    // Sums of row g of x in the blocks of group c: the lane's part of the right operand.
    const uint2 own = load8(x + X_SUMS + (8 * j * 4 + lane) * 8);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const u32 first = minus_upper_bytes(row_of(least, 2 * half)), second = minus_upper_bytes(row_of(least, 2 * half + 1));
      float less[4] = {};
      multiply_bf16(less, first, second, first, second, own.x, own.y);
#pragma unroll
      for (int k = 0; k < 4; k++)
        sums[half * ROW_TILES + j][k] += less[k] * float_of_half(row_of(supers, 2 * half + k / 2) >> 16);
    }
  }
}

#include "gemm_sums.cu"

template <int FORMAT> DEVICE void segment(const Matrix &m, const Work &work, int program, char *memory) {
  using S = Stage<FORMAT>;
  constexpr int STAGES = WEIGHT_BYTES / S::BYTES < MOST_STAGES ? WEIGHT_BYTES / S::BYTES : MOST_STAGES;
  static_assert(STAGES >= 2);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int row_warp = warp % ROW_WARPS, column_warp = warp / ROW_WARPS;
  const int end = (m.rows + TILE - 1) / TILE * work.span;
  const int start = program * work.share, stop = min(start + work.share, end);

  // Shared memory: stages of each warp's weights, barriers, stages of x of each column warp, sums of column
  // warps but the first.
  const u32 base = shared_address(memory), header = base + WARPS * WEIGHT_BYTES;
  const u32 full = header + column_warp * X_STAGES * 16, empty = full + X_STAGES * 8;
  const u32 copied = header + X_BARRIERS + warp * STAGES * 8;
  const u32 x_stages = header + HEADER + column_warp * X_STAGES * X_UNIT;
  const Stages<FORMAT, STAGES> stages(base, warp);
  float *left = (float *)(memory + WARPS * WEIGHT_BYTES + HEADER + COLUMN_WARPS * X_STAGES * X_UNIT);
  if (threadIdx.x < COLUMN_WARPS * X_STAGES) {
    const u32 at = header + threadIdx.x / X_STAGES * (X_STAGES * 16) + threadIdx.x % X_STAGES * 8;
    barrier_init(at, 1), barrier_init(at + X_STAGES * 8, ROW_WARPS);
    barriers_are_set();
  }
  if (elected()) {
#pragma unroll
    for (int i = 0; i < STAGES; i++) barrier_init(copied + 8 * i, 1);
    barriers_are_set();
  }

  Rounds ahead(work, start, stop), x_ahead = ahead;
  Ring<STAGES> filled;
  int step = 0;  // of a unit of two stages
  auto copy_weights = [&]() {
    if (ahead.over()) return;
    if (elected()) {
      const int unit = ahead.pair + column_warp, row = (ahead.tile * ROW_WARPS + row_warp) * 8;
      const u32 barrier = copied + 8 * filled.stage;
      if (unit < ahead.end) stages.copy(filled.stage, m, row, unit * S::OF_UNIT + step, barrier, work.policy);
      else barrier_arrive(barrier);
    }
    filled.next();
    if (S::OF_UNIT == 2) step ^= 1;
    if (step == 0) ahead.next();
  };
  Ring<X_STAGES> x_filled;
  int until_own = row_warp;  // the warps of the same units take turns
  auto copy_x = [&]() {
    if (x_ahead.over()) return;
    if (until_own == 0) {
      const u32 barrier = full + 8 * x_filled.stage;
      const int unit = x_ahead.pair + column_warp;
      // Of a stage that was never filled, the turn before counts as over.
      barrier_wait(empty + 8 * x_filled.stage, x_filled.turn ^ 1);
      if (elected()) {
        if (unit < x_ahead.end) copy_rows_of_x(x_stages + x_filled.stage * X_UNIT, work, unit, barrier);
        else barrier_arrive(barrier);
      }
    }
    until_own = until_own ? until_own - 1 : ROW_WARPS - 1;
    x_filled.next(), x_ahead.next();
  };

  // Weights are not of this step, so they may be read before the launches before this one have ended.
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) copy_weights();
  __syncthreads();
  wait_for_producers();
#pragma unroll
  for (int i = 0; i < X_STAGES - 1; i++) copy_x();

  Ring<STAGES> read;
  Ring<X_STAGES> x_read;
  // The next stage. The one that is filled meanwhile was read before.
  Weights<FORMAT> weights(lane);
  auto next = [&]() {
    barrier_wait(copied + 8 * read.stage, read.turn);
    __syncwarp();
    weights.begin(stages, read.stage);
    read.next();
    copy_weights();
  };
  const int first_tile = start / work.span, last_tile = (stop - 1) / work.span;
  for (int tile = first_tile; tile <= last_tile; tile++) {
    float sums[2 * ROW_TILES][4];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i / 4][i % 4] = 0;
    const int last = min(stop - tile * work.span, UNITS);
    for (int first = max(start - tile * work.span, 0); first < last; first += COLUMN_WARPS) {
      const int unit = first + column_warp;
      barrier_wait(full + 8 * x_read.stage, x_read.turn);
      add_unit<FORMAT>(sums, weights, x_stages + x_read.stage * X_UNIT, unit, unit < last, lane, work.constant, next);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * x_read.stage);
      x_read.next();
      copy_x();
    }
    if (tile == last_tile) start_dependents();
    float own[OWNED][2][4];
    sum_of_columns(own, sums, left, row_warp, column_warp, tile > first_tile, lane);
    if (column_warp < OWNERS) end_tile<FORMAT>(own, RowFactors(), m, work, program, tile, start, end, row_warp, column_warp, lane);
  }
}

constexpr int PRODUCERS = 0;  // each warp copies
#define KERNEL gemm_mma_int8
#include "gemm_segments.cu"
