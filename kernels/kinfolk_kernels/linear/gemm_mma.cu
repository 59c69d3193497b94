// Packed matrices times float16 rows on tensor cores, for sm_90, in parts of up to 128 rows.
//
// A warp multiplies 32 rows of a matrix with all rows of a part of x, a pair of groups (128 columns) at a time.
// ROW_WARPS warps of a program take other rows, and COLUMN_WARPS as many other pairs of the same rows;
// their sums are added in shared memory. Each warp copies its own weights to shared memory, some pairs
// ahead, and waits for no other warp. x is copied by one thread, for all warps. A lane's word of four
// rows unpacks to the lane's own part of the left operand of the tensor core, so weights stay in its
// registers.
//
// The pairs of a matrix, tile by tile of 32 ROW_WARPS rows, are divided into equal shares, one for each
// program. A share may begin inside a tile: then its first sums are a part, which the program with the
// tile's first pairs adds when it has its own.
//
// With WARPGROUPS, four warps multiply together (wgmma), and the tensor core reads x from shared memory
// itself: each warp would read all of it for mma.sync, which takes longer than products of many rows. And
// four more warps, the producers, do nothing but copy: copies of many bytes stop the warp that asks for them.
//
// Compiled in: ROW_TILES (of eight rows of x), ROW_WARPS, COLUMN_WARPS, WARPGROUPS, PRODUCERS (their warps, or 0),
// X_STAGES, WEIGHT_BYTES (shared memory for the weights of a warp), COLUMNS, Y_TYPE, F0 to F3.

#define X_IN_ROWS 0
#include "gemm_f16_parts.cu"

constexpr int X_PAIR = ROW_TILES * 2048; // bytes of x of a pair
constexpr int PARTS = WARPGROUPS ? 2 : 1;  // of sums that a program leaves
constexpr int HEADER = 256;              // bytes of shared memory in which barriers stand

#include "gemm_sums.cu"

// What a program has to do of a matrix.
struct Share {
  int groups, end, start, stop, first_tile, last_tile;  // start, stop, end: pairs

  ALWAYS Share(const Matrix &m, const Work &work, int program) {
    groups = (m.rows + 3) / 4, end = (m.rows + TILE - 1) / TILE * work.span;
    start = program * work.share, stop = min(start + work.share, end);
    first_tile = start / work.span, last_tile = (stop - 1) / work.span;
  }
  ALWAYS int first_pair(const Work &work, int tile) const { return max(start - tile * work.span, 0); }
  ALWAYS int last_pair(const Work &work, int tile) const { return min(stop - tile * work.span, (COLUMNS + 127) / 128); }
};

#if WARPGROUPS
constexpr int UNDER_WAY = ROW_TILES == 16 ? 1 : 3;  // see add_pair; with more sums there are no registers for more

// Shared memory: barriers, stages of x, stages of each warp's weights.
template <int FORMAT> struct Stages {
  static constexpr int BARRIERS = HEADER / 4;  // bytes of those of one kind
  static constexpr int ROOM = WEIGHT_BYTES / Layout<FORMAT>::STAGE;
  static constexpr int WEIGHTS = ROOM < BARRIERS / 8 ? ROOM : BARRIERS / 8;
  static_assert(WEIGHTS >= 2 && X_STAGES >= 2 && X_STAGES <= BARRIERS / 8);
  u32 memory;

  ALWAYS u32 x_full(int stage) const { return memory + 8 * stage; }
  ALWAYS u32 x_empty(int stage) const { return x_full(stage) + BARRIERS; }
  ALWAYS u32 full(int stage) const { return x_full(stage) + 2 * BARRIERS; }
  ALWAYS u32 empty(int stage) const { return x_full(stage) + 3 * BARRIERS; }
  ALWAYS u32 x(int stage) const { return memory + HEADER + stage * X_PAIR; }
  ALWAYS u32 weights(int stage, int warp) const {
    return memory + HEADER + X_STAGES * X_PAIR + warp * WEIGHT_BYTES + stage * Layout<FORMAT>::STAGE;
  }

  ALWAYS void begin() const {
    for (int i = 0; i < X_STAGES; i++) barrier_init(x_full(i), 1), barrier_init(x_empty(i), WARPS);
    for (int i = 0; i < WEIGHTS; i++) barrier_init(full(i), 32 * PRODUCERS), barrier_init(empty(i), WARPS);
    barriers_are_set();
  }
};

template <int FORMAT> DEVICE void produce(const Matrix &m, const Work &work, const Share &share, const Stages<FORMAT> &stages, int warp, int lane) {
  Rounds ahead(work, share.start, share.stop), x_ahead = ahead;
  Ring<Stages<FORMAT>::WEIGHTS> filled;
  Ring<X_STAGES> x_filled;
  Source<FORMAT> source;
  source.policy = work.policy;
  auto begin = [&]() { source.begin(m, (ahead.tile * ROW_WARPS + warp) * 8, share.groups, lane); };
  begin();
  auto copy_weights = [&]() {
    if (ahead.over()) return;
    barrier_wait(stages.empty(filled.stage), filled.turn ^ 1);
#pragma unroll
    for (int i = 0; i < ROW_WARPS; i += PRODUCERS)
      source.moved(8 * i, lane).copy(stages.weights(filled.stage, warp + i), ahead.pair, lane);
    arrive_with_copies(stages.full(filled.stage));
    filled.next();
    if (ahead.next()) begin();
  };
  auto copy_x = [&]() {
    if (x_ahead.over()) return;
    const u32 barrier = stages.x_full(x_filled.stage);
    if (warp == 0 && lane == 0) {
      barrier_wait(stages.x_empty(x_filled.stage), x_filled.turn ^ 1);
      barrier_expect(barrier, X_PAIR);
      bulk_copy(stages.x(x_filled.stage), work.x + (u64)x_ahead.pair * X_PAIR, X_PAIR, barrier);
    }
    x_filled.next(), x_ahead.next();
  };
  // Weights are not of this step, so they may be read before the launches before this one have ended.
  for (int i = 0; i < Stages<FORMAT>::WEIGHTS; i++) copy_weights();
  wait_for_producers();
  for (int i = 0; i < X_STAGES; i++) copy_x();
  while (!x_ahead.over()) copy_weights(), copy_x();
  while (!ahead.over()) copy_weights();
}

template <int FORMAT> DEVICE void consume(const Matrix &m, const Work &work, const Share &share, const Stages<FORMAT> &stages, int program, int warp, int lane) {
  Ring<Stages<FORMAT>::WEIGHTS> read;
  Ring<X_STAGES> x_read;
  wait_for_producers();  // of launches before this one: sums of parts are in their memory
  for (int tile = share.first_tile; tile <= share.last_tile; tile++) {
    float sums[2 * ROW_TILES][4];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i / 4][i % 4] = 0;
    pin_sums<ROW_TILES>(sums);
    int held = -1;  // the stage of x whose products may be under way
    auto give_back_x = [&]() {
      __syncwarp();
      if (held >= 0 && lane == 0) barrier_arrive(stages.x_empty(held));
    };
    const int last_pair = share.last_pair(work, tile);
    for (int pair = share.first_pair(work, tile); pair < last_pair; pair++) {
      barrier_wait(stages.full(read.stage), read.turn);
      barrier_wait(stages.x_full(x_read.stage), x_read.turn);
      Pair<FORMAT> weights(stages.weights(read.stage, warp), pair, lane, work.constant);
      auto word = weights.load(0);
      add_pair<FORMAT, ROW_TILES, UNDER_WAY>(sums, weights, word, stages.x(x_read.stage), give_back_x, [] {});
      __syncwarp();
      if (lane == 0) barrier_arrive(stages.empty(read.stage));
      held = x_read.stage;
      read.next(), x_read.next();
    }
    const RowFactors factors(work, lane);
    wait_for_products<0>();
    pin_sums<ROW_TILES>(sums);
    give_back_x();
    if (tile == share.last_tile) start_dependents();
    const SharedTile shared(work, tile, share.end);
    if (shared.count > 2 || program > shared.first) {
      shared.leave(sums, work, program, warp, lane);
      continue;
    }
    if (shared.count == 2) shared.add_other(sums, work, warp, lane);
    write_y<FORMAT>(sums, factors, m, work, (tile * ROW_WARPS + warp) * 32, lane);
  }
  for (int tile = share.first_tile; tile <= share.last_tile; tile += max(1, share.last_tile - share.first_tile)) {
    const SharedTile shared(work, tile, share.end);
    if (shared.count > 2) shared.template sum<FORMAT>(RowFactors(work, lane), m, work, program, warp, lane);
  }
}

template <int FORMAT> DEVICE void segment(const Matrix &m, const Work &work, int program, char *memory) {
  static_assert(COLUMN_WARPS == 1 && ROW_WARPS % PRODUCERS == 0);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const Stages<FORMAT> stages{shared_address(memory)};
  const Share share(m, work, program);
  if (threadIdx.x == 0) stages.begin();
  __syncthreads();
  if (warp >= WARPS) {
    if (ROW_WARPS > 4) give_registers<72>();
    produce(m, work, share, stages, warp - WARPS, lane);
  } else {
    if (ROW_WARPS > 4) take_registers<216>();
    consume(m, work, share, stages, program, warp, lane);
  }
}
#else
template <int FORMAT> DEVICE void segment(const Matrix &m, const Work &work, int program, char *memory) {
  using L = Layout<FORMAT>;
  constexpr int STAGES = WEIGHT_BYTES / L::STAGE;
  static_assert(STAGES >= 2);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int row_warp = warp % ROW_WARPS, column_warp = warp / ROW_WARPS;
  const Share share(m, work, program);

  // Shared memory: barriers, stages of x, stages of each warp's weights, sums of column warps but the first.
  const u32 full = shared_address(memory), empty = full + HEADER / 2, x_stages = full + HEADER;
  const u32 weights = x_stages + X_STAGES * COLUMN_WARPS * X_PAIR + warp * WEIGHT_BYTES;
  float *left = (float *)(memory + HEADER + X_STAGES * COLUMN_WARPS * X_PAIR + WARPS * WEIGHT_BYTES);
  if (threadIdx.x == 0) {
    for (int i = 0; i < X_STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  Rounds ahead(work, share.start, share.stop);
  Ring<STAGES> filled;
  Source<FORMAT> source;
  source.policy = work.policy;
  source.begin(m, (ahead.tile * ROW_WARPS + row_warp) * 8, share.groups, lane);
  auto copy_weights = [&]() {
    if (!ahead.over()) {
      int pair = ahead.pair + column_warp;
      if (pair < ahead.end) source.copy(weights + filled.stage * L::STAGE, pair, lane);
      filled.next();
      if (ahead.next()) source.begin(m, (ahead.tile * ROW_WARPS + row_warp) * 8, share.groups, lane);
    }
    end_of_copies();  // a group without copies too: groups are counted
  };
  Rounds x_ahead = ahead;
  Ring<X_STAGES> x_filled;
  int x_rounds = 0;
  auto copy_x = [&]() {
    if (x_ahead.over()) return;
    if (x_rounds++ >= X_STAGES) barrier_wait(empty + 8 * x_filled.stage, x_filled.turn ^ 1);
    u32 bytes = min(COLUMN_WARPS, x_ahead.end - x_ahead.pair) * X_PAIR;
    barrier_expect(full + 8 * x_filled.stage, bytes);
    bulk_copy(x_stages + x_filled.stage * COLUMN_WARPS * X_PAIR, work.x + (u64)x_ahead.pair * X_PAIR, bytes,
              full + 8 * x_filled.stage);
    x_filled.next(), x_ahead.next();
  };

  // Weights are not of this step, so they may be read before the launches before this one have ended.
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) copy_weights();
  __syncthreads();
  wait_for_producers();
  const RowFactors factors(work, lane);
  if (threadIdx.x == 0)
    for (int i = 0; i < X_STAGES - 1; i++) copy_x();

  Ring<STAGES> read;
  Ring<X_STAGES> x_read;
  for (int tile = share.first_tile; tile <= share.last_tile; tile++) {
    float sums[2 * ROW_TILES][4];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i / 4][i % 4] = 0;
    const int last_pair = share.last_pair(work, tile);
    for (int first = share.first_pair(work, tile); first < last_pair; first += COLUMN_WARPS) {
      wait_for_copies<STAGES - 2>();
      __syncwarp();
      barrier_wait(full + 8 * x_read.stage, x_read.turn);
      const int pair = first + column_warp;
      const u32 weights_at = weights + read.stage * L::STAGE;
      const u32 x_at = x_stages + (x_read.stage * COLUMN_WARPS + column_warp) * X_PAIR;
      if (pair < last_pair) add_pair<FORMAT, ROW_TILES>(sums, weights_at, x_at, pair, lane, work.constant);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * x_read.stage);
      read.next(), x_read.next();
      copy_weights();
      if (threadIdx.x == 0) copy_x();
    }
    if (tile == share.last_tile) start_dependents();
    float own[OWNED][2][4];
    sum_of_columns(own, sums, left, row_warp, column_warp, tile > share.first_tile, lane);
    if (column_warp < OWNERS) end_tile<FORMAT>(own, factors, m, work, program, tile, share.start, share.end, row_warp, column_warp, lane);
  }
}
#endif

#define KERNEL gemm_mma
#include "gemm_segments.cu"
