// Packed matrices of experts times the float16 rows of the pairs (row, expert) that chose them, for sm_90.
//
// Pairs are sorted by expert. A block is up to 80 of them, of one expert; an expert's pairs are divided evenly
// among its blocks. A program multiplies TILE rows of a matrix, 32 a warp, with the rows of a block: an item.
// Four warps multiply together (wgmma), weights unpacked in registers with x in shared memory, see
// gemm_f16_parts.cu. A product has 4, 8 or 10 tiles of eight pairs, as few as hold the block.
//
// A round is a pair of groups (128 columns) of an item. Four warps, the producers, do nothing but copy what a
// round needs, weights and rows of x, into a ring of stages: copies of many bytes stop the warp that asks for
// them, and two warpgroups that ask together also unpack together, while the tensor cores have nothing to do.
// Producers run on into the next item while the sums of one become results. They take items from a counter when
// they need them, so no program waits long for the others in the end.
//
// Compiled in: F0 (the format), COLUMNS, ROWS (of a matrix), MATRICES (1 or 2 of an expert), EXPERTS, TOP_K (pairs
// of a row of x; 0: x has a row for each pair, in sorted order), STAGES_OF_ROUNDS, ROW_WARPS, ROW_TILES and
// COLUMN_WARPS and Y_TYPE of gemm_parts.cu, WARPGROUPS = 1.

#define X_IN_ROWS 1
#include "../linear/gemm_f16_parts.cu"

using L = Layout<F0>;
constexpr int ROUNDS = (COLUMNS + UNIT - 1) / UNIT;
constexpr int CHUNKS = (ROWS + TILE - 1) / TILE;  // items of a matrix and a block
constexpr int PRODUCERS = 4;                      // warps; a thread for each pair of a block
constexpr int X_STAGE = ROW_TILES * 2048;         // bytes of x of a round
constexpr int STAGE = X_STAGE + WARPS * L::STAGE; // bytes of a round
constexpr int X_ROW = ROUNDS * 256;               // bytes of a row of x

struct Groups {
  const char *q[2], *high[2], *scales[2], *supers[2];  // planes of the matrices of bay 0
  u64 q_step, high_step, scales_step, supers_step;     // bytes between bays
  u64 apart;      // bytes from where the first far bay would follow the near ones to where it is
  const char *x;  // F16Rows
  const float *factor;
  const int *order, *starts, *ends;  // as sort_kernels describes them
  const long long *bay_of_expert;
  u16 *y;         // [MATRICES, pairs, ROWS]; pairs in sorted order or, if x is in that order, in theirs before it
  int *next;      // the next item but for the first of each program; zero before and after
  int near, pairs;
  u32 constant;
  u64 policy;
};

// What consumers are told of an item: its number, how many pairs it has, and factors and rows of the result.
// Without pairs: there are no more items.
struct Item {
  int number, count;
  int2 results[X_ROWS];  // row and bits of the factor
};
// Producers are ahead by as many items as there are stages, if all have one round, and one more; one is read.
constexpr int ITEMS = STAGES_OF_ROUNDS + 2;

struct Known {
  u64 full[STAGES_OF_ROUNDS], empty[STAGES_OF_ROUNDS];  // barriers
  Item item[ITEMS];
  // Of the producers, for an item and for the one before it, which may still be read: rows of x, the item that
  // follows.
  int from[2][X_ROWS], upcoming[2];
  int ends[EXPERTS], starts[EXPERTS + 1], bays[EXPERTS];
  int items;
};
constexpr int KNOWN_BYTES = (sizeof(Known) + 1023) / 1024 * 1024;

DEVICE int tiles_of(int count) { return count <= 32 ? 4 : count <= 64 ? 8 : 10; }

// -- producers --------------------------------------------------------------------------------------------

struct Block {
  int bay, first, count;  // first: place of its first pair
};

DEVICE Block block_of(const Known &known, int number, int lane) {
  const int block = number / (MATRICES * CHUNKS);
  // The first expert whose blocks end behind this one: lanes look at experts STEP apart, then at each of those between.
  constexpr int STEP = (EXPERTS + 31) / 32;
  static_assert(STEP <= 32);
  auto ended = [&](int expert) { return expert < EXPERTS && known.ends[expert] <= block; };
  const int of_step = __popc(__ballot_sync(~0u, ended(lane * STEP + STEP - 1))) * STEP;
  const int expert = of_step + __popc(__ballot_sync(~0u, lane < STEP && ended(of_step + lane)));
  const int before = expert ? known.ends[expert - 1] : 0, blocks = known.ends[expert] - before;
  const int all = known.starts[expert + 1] - known.starts[expert];
  const int size = ((all + blocks - 1) / blocks + 7) / 8 * 8, first = (block - before) * size;
  return {known.bays[expert], known.starts[expert] + first, min(size, all - first)};
}

// The weights of a warp of consumers.
DEVICE Source<F0> source_of(const Groups &g, int number, int bay, int warp, int lane) {
  const int chunk = number % (MATRICES * CHUNKS), which = MATRICES == 1 ? 0 : chunk / CHUNKS;
  const u64 moved = bay >= g.near ? g.apart : 0;
  Matrix m = {};
  m.q = g.q[which] + bay * g.q_step + moved;
  if (L::HIGH) m.high = g.high[which] + bay * g.high_step + moved;
  if (!L::SMALL) m.scales = g.scales[which] + bay * g.scales_step + moved;
  m.supers = g.supers[which] + bay * g.supers_step + moved;
  Source<F0> source;
  source.policy = g.policy;
  source.begin(m, (chunk % CHUNKS * ROW_WARPS + warp) * 8, (ROWS + 3) / 4, lane);
  return source;
}

DEVICE void produce(const Groups &g, Known &known, u32 stages, int warp, int lane) {
  const int thread = 32 * warp + lane;
  const u32 full = shared_address(known.full), empty = shared_address(known.empty);
  Ring<STAGES_OF_ROUNDS> filled;
  Block next = {};
  int place = 0, pair = 0, asked = 0;
  float factor = 0;
  auto own_row = [&]() { return TOP_K ? pair / (TOP_K + !TOP_K) : place; };
  // A thread asks for the pair of its place and then for the factor of the pair's row, an item ahead.
  auto ask_pair = [&](int number) {
    next = block_of(known, number, lane);
    place = next.first + min(thread, next.count - 1);
    pair = __ldcg(g.order + place);
  };
  auto ask_factor = [&]() { factor = __ldcg(g.factor + own_row()); };
  auto ask_item = [&]() {
    if (thread == 0) asked = count_up(g.next) + (int)gridDim.x;
  };

  int number = blockIdx.x, taken = 0, shown = 0;
  ask_item();
  if (number < known.items) ask_pair(number), ask_factor();
  for (; number < known.items; taken++) {
    const Block block = next;
    Item &item = known.item[shown % ITEMS];
    if (thread < X_ROWS) {
      known.from[taken % 2][thread] = own_row();
      item.results[thread] = {TOP_K ? place : pair, (int)__float_as_uint(factor)};
    }
    if (thread == 0) item.number = number, item.count = block.count, known.upcoming[taken % 2] = asked;
    wait_together<32 * PRODUCERS>(1);
    const int upcoming = known.upcoming[taken % 2];
    auto prepare = [&]() {
      if (upcoming < known.items) ask_pair(upcoming), ask_item();
    };
    const int rounds = block.bay < 0 ? 0 : ROUNDS, tiles = tiles_of(block.count);  // an absent expert has no rounds
    Source<F0> source;
    if (rounds) source = source_of(g, number, block.bay, warp, lane), shown++;
    else prepare(), ask_factor();
    for (int round = 0; round < rounds; round++) {
      barrier_wait(empty + 8 * filled.stage, filled.turn ^ 1);
      const u32 stage = stages + filled.stage * STAGE, weights = stage + X_STAGE + warp * L::STAGE;
      source.copy(weights, round, lane);
      source.moved(8 * PRODUCERS, lane).copy(weights + PRODUCERS * L::STAGE, round, lane);
      // Half of the columns of four rows at a time.
      const int half = warp % 2, row = warp / 2 * 4 + lane / 8, chunk = lane % 8;
      const char *from = g.x + round * 256 + half * 128 + chunk * 16;
      const u32 to = stage + half * tiles * 1024 + row * 128 + (chunk ^ row) * 16;
#pragma unroll
      for (int tile = 0; tile < ROW_TILES; tile++)
        if (tile < tiles) copy16(to + tile * 1024, from + (u64)known.from[taken % 2][tile * 8 + row] * X_ROW);
      arrive_with_copies(full + 8 * filled.stage);
      if (thread == 0) barrier_arrive(full + 8 * filled.stage);  // what is known of the item is known to consumers
      filled.next();
      if (round == 0) prepare();
      if (round == min(1, ROUNDS - 1)) ask_factor();
    }
    number = upcoming;
  }
  barrier_wait(empty + 8 * filled.stage, filled.turn ^ 1);
  if (thread == 0) known.item[shown % ITEMS].count = 0, barrier_arrive(full + 8 * filled.stage);
  barrier_arrive(full + 8 * filled.stage);
  // Each program has asked for one item too many; the last of them sets the counter back.
  const int beyond = taken ? number : asked;
  if (thread == 0 && beyond == max(known.items, (int)gridDim.x) + (int)gridDim.x - 1) *g.next = 0;
}

// -- consumers --------------------------------------------------------------------------------------------

// The results of a warp's 32 rows of a matrix and X_TILES tiles of pairs.
template <int X_TILES> DEVICE void write_item(float (*sums)[4], const Groups &g, const Item &item, int warp, int lane) {
  const int chunk = item.number % (MATRICES * CHUNKS);
  const int n = (chunk % CHUNKS * ROW_WARPS + warp) * 32 + row_group(lane) * 4;
  if (n >= ROWS) return;
  u16 *y = g.y + (u64)(chunk / CHUNKS) * g.pairs * ROWS + n;
#pragma unroll
  for (int j = 0; j < X_TILES; j++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int r = j * 8 + 2 * (lane & 3) + e;
      if (r >= item.count) continue;
      const int2 result = item.results[r];
      const float factor = __uint_as_float(result.y) * (F0 == Q4_K ? 32 : 1);  // see unpack
      const float *first = sums[j] + e, *second = sums[X_TILES + j] + e;
      const uint2 v = {halves_of(first[0] * factor, first[2] * factor), halves_of(second[0] * factor, second[2] * factor)};
      *(uint2 *)(y + (u64)result.x * ROWS) = v;
    }
}

template <int N> struct Tiles {
  static constexpr int VALUE = N;
};

DEVICE void consume(const Groups &g, const Known &known, u32 stages, int warp, int lane) {
  const u32 full = shared_address(known.full), empty = shared_address(known.empty);
  Ring<STAGES_OF_ROUNDS> read;
  auto multiply_item = [&](auto tiles, const Item &item) {
    constexpr int X_TILES = decltype(tiles)::VALUE;
    float sums[2 * X_TILES][4];
#pragma unroll
    for (int i = 0; i < 8 * X_TILES; i++) sums[i / 4][i % 4] = 0;
    pin_sums<X_TILES>(sums);
    int held = -1;  // the stage whose products may be under way
    auto give_back = [&]() {
      __syncwarp();
      if (held >= 0 && lane == 0) barrier_arrive(empty + 8 * held);
    };
    int round = 0;
    // Of the next round, when those of this one have been loaded: a round's first products wait for them.
    auto weights_of = [&]() {
      barrier_wait(full + 8 * read.stage, read.turn);
      return Pair<F0>(stages + read.stage * STAGE + X_STAGE + warp * L::STAGE, round, lane, g.constant);
    };
    Pair<F0> weights = weights_of();
    auto word = weights.load(0);
    while (round < ROUNDS) {
      const int stage = read.stage;
      read.next(), round++;
      auto load_ahead = [&]() {
        if (round < ROUNDS) weights = weights_of(), word = weights.load(0);
      };
      copies_are_known();
      add_pair<F0, X_TILES, 1>(sums, weights, word, stages + stage * STAGE, give_back, load_ahead);
      held = stage;
    }
    wait_for_products<0>();
    pin_sums<X_TILES>(sums);
    give_back();
    write_item<X_TILES>(sums, g, item, warp, lane);
  };
  for (int i = 0;; i = (i + 1) % ITEMS) {
    barrier_wait(full + 8 * read.stage, read.turn);
    const Item &item = known.item[i];
    if (item.count == 0) break;
    switch (tiles_of(item.count)) {
      case 4: multiply_item(Tiles<4>(), item); break;
      case 8: multiply_item(Tiles<8>(), item); break;
      default: multiply_item(Tiles<10>(), item);
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * (WARPS + PRODUCERS), 1) mma_groups(const __grid_constant__ Groups g) {
  // Products of a round run into the next one, so a stage is given back when another is there.
  static_assert(STAGES_OF_ROUNDS >= 2 && COLUMN_WARPS == 1 && ROW_WARPS == 2 * PRODUCERS && X_ROWS <= 32 * PRODUCERS && ROWS % 4 == 0);
  extern __shared__ __align__(1024) char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  Known &known = *(Known *)memory;
  const u32 stages = shared_address(memory) + KNOWN_BYTES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES_OF_ROUNDS; i++) {
      barrier_init(shared_address(known.full + i), 32 * PRODUCERS + 1);
      barrier_init(shared_address(known.empty + i), WARPS);
    }
    barriers_are_set();
  }
  wait_for_producers();
  for (int i = threadIdx.x; i <= EXPERTS; i += 32 * (WARPS + PRODUCERS)) {
    known.starts[i] = __ldcg(g.starts + i);
    if (i == EXPERTS) break;
    known.ends[i] = __ldcg(g.ends + i), known.bays[i] = (int)__ldcg(g.bay_of_expert + i);
  }
  if (threadIdx.x == 0) known.items = __ldcg(g.ends + EXPERTS - 1) * (MATRICES * CHUNKS);
  __syncthreads();
  if (warp >= WARPS) {
    give_registers<72>();
    produce(g, known, stages, warp - WARPS, lane);
  } else {
    take_registers<216>();
    consume(g, known, stages, warp, lane);
  }
  start_dependents();
}
