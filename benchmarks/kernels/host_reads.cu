// Brings bytes of host memory to the device, by the instruction that WAY names. Programs take pieces in turn.

typedef unsigned int u32;
typedef unsigned long long u64;
#define DEVICE static __device__ __forceinline__

enum { LOADS, LOADS_256, ASYNC_256, BULK };

constexpr int STAGES = 4;  // pieces that a program has asked for at a time

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// A thread asks for 16 bytes of each of STAGES pieces, and stores them.
DEVICE void by_loads(uint4 *to, const uint4 *from, long long words) {
  long long threads = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (long long at = first; at < words; at += STAGES * threads) {
    uint4 held[STAGES];
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
      const uint4 *p = from + at + i * threads;
      if (at + i * threads >= words) continue;
      if constexpr (WAY == LOADS) {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(held[i].x), "=r"(held[i].y), "=r"(held[i].z), "=r"(held[i].w) : "l"(p));
      } else {
        asm volatile("ld.global.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(held[i].x), "=r"(held[i].y), "=r"(held[i].z), "=r"(held[i].w) : "l"(p));
      }
    }
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
      if (at + i * threads < words) to[at + i * threads] = held[i];
    }
  }
}

// The same through shared memory: a thread reads only what it has asked for, so nothing waits for others.
DEVICE void by_copies(uint4 *to, const uint4 *from, long long words, uint4 *shared) {
  long long threads = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  auto ask = [&](long long at, int stage) {
    if (at < words) {
      asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(shared + stage * blockDim.x + threadIdx.x)), "l"(from + at));
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int i = 0; i < STAGES; i++) ask(first + i * threads, i);
  int stage = 0;
  for (long long at = first; at < words; at += threads) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
    to[at] = shared[stage * blockDim.x + threadIdx.x];
    ask(at + STAGES * threads, stage);
    stage = (stage + 1) % STAGES;
  }
}

// One thread asks for whole pieces, and has them stored from shared memory.
DEVICE void by_bulk(char *to, const char *from, long long bytes, char *shared, u32 piece) {
  __shared__ alignas(8) u64 came[STAGES];
  if (threadIdx.x > 0) return;
  for (int i = 0; i < STAGES; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(came + i)));
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
  long long step = (long long)gridDim.x * piece, first = (long long)blockIdx.x * piece;
  auto ask = [&](long long at, int stage) {
    if (at >= bytes) return;
    u32 barrier = shared_address(came + stage);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(piece) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared + stage * piece)),
                 "l"(from + at), "r"(piece), "r"(barrier) : "memory");
  };
  for (int i = 0; i < STAGES - 1; i++) ask(first + i * step, i);
  int stage = 0;
  u32 parity = 0;
  for (long long at = first; at < bytes; at += step) {
    u32 done = 0;
    while (!done) {
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(shared_address(came + stage)), "r"(parity) : "memory");
    }
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + at), "r"(shared_address(shared + stage * piece)), "r"(piece) : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    // The place of the piece before is asked for anew when it has been read.
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    ask(at + (STAGES - 1) * step, (stage + STAGES - 1) % STAGES);
    stage = (stage + 1) % STAGES;
    parity ^= stage == 0;
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

extern "C" __global__ void host_reads(char *to, const char *from, long long bytes, int piece) {
  extern __shared__ __align__(128) char shared[];
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if constexpr (WAY == BULK) {
    by_bulk(to, from, bytes, shared, piece);
  } else if constexpr (WAY == ASYNC_256) {
    by_copies((uint4 *)to, (const uint4 *)from, bytes / 16, (uint4 *)shared);
  } else {
    by_loads((uint4 *)to, (const uint4 *)from, bytes / 16);
  }
}
