/* SPDX-License-Identifier: Apache-2.0 */
/* What NVML shows agrees with what CUDA shows and with itself; and SIMGPU_NVML is heard. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "nvml.h"

#define OK(call) assert_int_equal((call), NVML_SUCCESS)

static unsigned count;

static nvmlDevice_t device(unsigned i)
{
    nvmlDevice_t d = NULL;
    OK(nvmlDeviceGetHandleByIndex_v2(i, &d));
    return d;
}

static int setup(void **state)
{
    (void)state;
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&count));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    OK(nvmlShutdown());
    return nvmlDeviceGetCount_v2(&count) == NVML_ERROR_UNINITIALIZED ? 0 : 1;
}

static void test_identity(void **state)
{
    int cuda = 0;
    (void)state;
    assert_int_equal(cudaGetDeviceCount(&cuda), cudaSuccess);
    assert_int_equal(cuda, count);
    for (int i = 0; i < cuda; i++) {
        char pci[32], uuid[96];
        nvmlDevice_t d = NULL, same = NULL;
        nvmlPciInfo_t info;
        struct cudaDeviceProp prop;
        assert_int_equal(cudaDeviceGetPCIBusId(pci, sizeof(pci), i), cudaSuccess);
        assert_int_equal(cudaGetDeviceProperties(&prop, i), cudaSuccess);
        OK(nvmlDeviceGetHandleByPciBusId_v2(pci, &d));
        OK(nvmlDeviceGetPciInfo_v3(d, &info));
        assert_int_equal(info.bus, prop.pciBusID);
        OK(nvmlDeviceGetUUID(d, uuid, sizeof(uuid)));
        OK(nvmlDeviceGetHandleByUUID(uuid, &same));
        assert_ptr_equal(d, same);
        OK(nvmlDeviceGetHandleByPciBusId_v2(info.busId, &same));
        assert_ptr_equal(d, same);
    }
    nvmlDevice_t none;
    assert_int_equal(nvmlDeviceGetHandleByIndex_v2(count, &none), NVML_ERROR_INVALID_ARGUMENT);
    assert_int_equal(nvmlDeviceGetHandleByPciBusId_v2("0000:ff:1f.0", &none), NVML_ERROR_NOT_FOUND);
}

/* A link that is up leads to a switch, or to a GPU that has one leading back. */
static void test_links(void **state)
{
    (void)state;
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < NVML_NVLINK_MAX_LINKS; k++) {
            int up = 0, type, status;
            nvmlPciInfo_t remote;
            nvmlDevice_t peer = NULL;
            if (nvmlDeviceGetNvLinkState(device(i), k, &up) != NVML_SUCCESS || !up)
                continue;
            OK(nvmlDeviceGetNvLinkRemoteDeviceType(device(i), k, &type));
            OK(nvmlDeviceGetNvLinkRemotePciInfo_v2(device(i), k, &remote));
            nvmlReturn_t found = nvmlDeviceGetHandleByPciBusId_v2(remote.busId, &peer);
            if (type == NVML_NVLINK_DEVICE_TYPE_SWITCH) {
                assert_int_equal(found, NVML_ERROR_NOT_FOUND);
                continue;
            }
            OK(found);
            OK(nvmlDeviceGetP2PStatus(device(i), peer, NVML_P2P_CAPS_INDEX_NVLINK, &status));
            assert_int_equal(status, NVML_P2P_STATUS_OK);
            OK(nvmlDeviceGetP2PStatus(peer, device(i), NVML_P2P_CAPS_INDEX_NVLINK, &status));
            assert_int_equal(status, NVML_P2P_STATUS_OK);
        }
}

static void test_pairs(void **state)
{
    (void)state;
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < count; k++) {
            int there, back;
            OK(nvmlDeviceGetTopologyCommonAncestor(device(i), device(k), &there));
            OK(nvmlDeviceGetTopologyCommonAncestor(device(k), device(i), &back));
            assert_int_equal(there, back);
            assert_int_equal(there == NVML_TOPOLOGY_INTERNAL, i == k);
        }
}

static void test_settings(void **state)
{
    (void)state;
    unsigned value;
    int up;
    nvmlMemory_t before, after;
    void *p;
    setenv("SIMGPU_NVML", "temp:1=91;link:0:2=0;pcie_width:*=4", 1);
    OK(nvmlDeviceGetTemperature(device(1), 0, &value));
    assert_int_equal(value, 91);
    OK(nvmlDeviceGetTemperature(device(0), 0, &value));
    assert_true(value < 60);
    OK(nvmlDeviceGetCurrPcieLinkWidth(device(0), &value));
    assert_int_equal(value, 4);
    if (nvmlDeviceGetNvLinkState(device(0), 2, &up) == NVML_SUCCESS)
        assert_int_equal(up, 0);
    unsetenv("SIMGPU_NVML");

    nvmlDevice_t d;
    char pci[32];
    assert_int_equal(cudaDeviceGetPCIBusId(pci, sizeof(pci), 0), cudaSuccess);
    OK(nvmlDeviceGetHandleByPciBusId_v2(pci, &d));
    OK(nvmlDeviceGetMemoryInfo(d, &before));
    assert_int_equal(cudaMalloc(&p, 1 << 20), cudaSuccess);
    OK(nvmlDeviceGetMemoryInfo(d, &after));
    assert_int_equal(after.used - before.used, 1 << 20);
    assert_int_equal(cudaFree(p), cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
