/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/gpu/run says first: the libraries that are loaded, by path, and the GPUs that CUDA
 * sees. The last line is their number. Status 77: none is usable. */
#include <dlfcn.h>
#include <stdio.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

/* The library that a function of this name comes from. */
static const char *file_of(const char *function)
{
    static Dl_info info;
    void *at = dlsym(RTLD_DEFAULT, function);
    return at != NULL && dladdr(at, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "?";
}

static void print_gpu(int i)
{
    struct cudaDeviceProp p;
    char bus[32] = "?";
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) {
        printf("GPU %d: %s\n", i, cudaGetErrorString(cudaGetLastError()));
        return;
    }
    (void)cudaDeviceGetPCIBusId(bus, sizeof bus, i);
    printf("GPU %d: %s, compute capability %d.%d, %.1f GiB, PCI %s\n", i, p.name, p.major, p.minor,
           (double)p.totalGlobalMem / (1024.0 * 1024 * 1024), bus);
}

int main(void)
{
    int runtime = 0, driver = 0, nccl = 0, n = 0;
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDriverGetVersion(&driver);
    (void)ncclGetVersion(&nccl);
    printf("CUDA runtime %d.%d (%s), driver for up to %d.%d\n", runtime / 1000, runtime % 1000 / 10,
           file_of("cudaGetDeviceCount"), driver / 1000, driver % 1000 / 10);
    printf("NCCL %d.%d.%d (%s)\n", nccl / 10000, nccl % 10000 / 100, nccl % 100,
           file_of("ncclGetVersion"));
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n == 0) {
        printf("no GPU is usable here: %s\n",
               error != cudaSuccess ? cudaGetErrorString(error) : "CUDA sees none");
        return 77;
    }
    for (int i = 0; i < n; i++)
        print_gpu(i);
    printf("%d\n", n);
    return 0;
}
