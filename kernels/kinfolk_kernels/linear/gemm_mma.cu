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
// itself: each warp would read all of it for mma.sync, which takes longer than products of many rows.
//
// Compiled in: ROW_TILES (of eight rows of x), ROW_WARPS, COLUMN_WARPS, WARPGROUPS, X_STAGES, WEIGHT_BYTES
// (shared memory for the weights of a warp), COLUMNS, Y_TYPE, F0 to F3.

#define X_IN_ROWS 0
#include "gemm_f16_parts.cu"

constexpr int X_PAIR = ROW_TILES * 2048; // bytes of x of a pair
constexpr int PARTS = WARPGROUPS ? 2 : 1;  // of sums that a program leaves
constexpr int X_AHEAD = X_STAGES - (WARPGROUPS ? 2 : 1);  // products of a round may run into the next
constexpr int HEADER = 256;              // bytes of shared memory in which barriers stand

#include "gemm_sums.cu"

template <int FORMAT> DEVICE void segment(const Matrix &m, const Work &work, int program, char *memory) {
  using L = Layout<FORMAT>;
  constexpr int STAGES = WEIGHT_BYTES / L::STAGE;
  static_assert(STAGES >= 2 && (!WARPGROUPS || (COLUMN_WARPS == 1 && ROW_WARPS % 4 == 0)));
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int row_warp = warp % ROW_WARPS, column_warp = warp / ROW_WARPS;
  const int groups = (m.rows + 3) / 4, end = (m.rows + TILE - 1) / TILE * work.span;
  const int start = program * work.share, stop = min(start + work.share, end);

  // Shared memory: barriers, stages of x, stages of each warp's weights, sums of column warps but the first.
  const u32 full = shared_address(memory), empty = full + HEADER / 2, x_stages = full + HEADER;
  const u32 weights = x_stages + X_STAGES * COLUMN_WARPS * X_PAIR + warp * WEIGHT_BYTES;
  float *left = (float *)(memory + HEADER + X_STAGES * COLUMN_WARPS * X_PAIR + WARPS * WEIGHT_BYTES);
  if (threadIdx.x == 0) {
    for (int i = 0; i < X_STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  Rounds ahead(work, start, stop);
  Ring<STAGES> filled;
  Source<FORMAT> source;
  source.policy = work.policy;
  source.begin(m, (ahead.tile * ROW_WARPS + row_warp) * 8, groups, lane);
  auto copy_weights = [&]() {
    if (!ahead.over()) {
      int pair = ahead.pair + column_warp;
      if (pair < ahead.end) source.copy(weights + filled.stage * L::STAGE, pair, lane);
      filled.next();
      if (ahead.next()) source.begin(m, (ahead.tile * ROW_WARPS + row_warp) * 8, groups, lane);
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
  if (threadIdx.x == 0)
    for (int i = 0; i < X_AHEAD; i++) copy_x();

  Ring<STAGES> read;
  Ring<X_STAGES> x_read;
  const int first_tile = start / work.span, last_tile = (stop - 1) / work.span;
  for (int tile = first_tile; tile <= last_tile; tile++) {
    float sums[2 * ROW_TILES][4];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i / 4][i % 4] = 0;
    const int last_pair = min(stop - tile * work.span, (COLUMNS + 127) / 128);
#if WARPGROUPS
    int held = -1;  // the stage of x whose products may be under way
    auto give_back_x = [&]() {
      __syncwarp();
      if (held >= 0 && lane == 0) barrier_arrive(empty + 8 * held);
    };
    pin_sums<ROW_TILES>(sums);
#endif
    for (int first = max(start - tile * work.span, 0); first < last_pair; first += COLUMN_WARPS) {
      wait_for_copies<STAGES - 2>();
      __syncwarp();
      barrier_wait(full + 8 * x_read.stage, x_read.turn);
      const int pair = first + column_warp;
      const u32 weights_at = weights + read.stage * L::STAGE;
      const u32 x_at = x_stages + (x_read.stage * COLUMN_WARPS + column_warp) * X_PAIR;
#if WARPGROUPS
      add_pair<FORMAT, ROW_TILES>(sums, weights_at, x_at, pair, lane, work.constant, give_back_x);
      held = x_read.stage;
#else
      if (pair < last_pair) add_pair<FORMAT, ROW_TILES>(sums, weights_at, x_at, pair, lane, work.constant);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * x_read.stage);
#endif
      read.next(), x_read.next();
      copy_weights();
      if (threadIdx.x == 0) copy_x();
    }
#if WARPGROUPS
    wait_for_products<0>();
    pin_sums<ROW_TILES>(sums);
    give_back_x();
#endif
    if (tile == last_tile) start_dependents();
#if WARPGROUPS
    const SharedTile shared(work, tile, end);
    if (shared.count > 2 || program > shared.first) {
      shared.leave(sums, work, program, row_warp, lane);
      continue;
    }
    if (shared.count == 2) shared.add_other(sums, work, row_warp, lane);
    write_y<FORMAT>(sums, m, work, (tile * ROW_WARPS + row_warp) * 32, lane);
#else
    float own[OWNED][2][4];
    sum_of_columns(own, sums, left, row_warp, column_warp, tile > first_tile, lane);
    if (column_warp < OWNERS) end_tile<FORMAT>(own, m, work, program, tile, start, end, row_warp, column_warp, lane);
#endif
  }
#if WARPGROUPS
  for (int tile = first_tile; tile <= last_tile; tile += max(1, last_tile - first_tile)) {
    const SharedTile shared(work, tile, end);
    if (shared.count > 2) shared.template sum<FORMAT>(m, work, program, row_warp, lane);
  }
#endif
}

#define KERNEL gemm_mma
#include "gemm_segments.cu"
