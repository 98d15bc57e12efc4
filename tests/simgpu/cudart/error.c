/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: the last one of each thread, and their names. An error of the device (an illegal address,
 * a GPU that fell off the bus) is lasting: it comes back from every call and is not cleared by
 * cudaGetLastError.
 */
#include "api.h"

#include <string.h>

#define SAME(name, value) _Static_assert((int)(name) == (int)(value), "the engine's number differs")
SAME(cudaSuccess, SG_OK);
SAME(cudaErrorInvalidValue, SG_ERR_INVALID_VALUE);
SAME(cudaErrorMemoryAllocation, SG_ERR_MEMORY);
SAME(cudaErrorInvalidDevice, SG_ERR_INVALID_DEVICE);
SAME(cudaErrorNoDevice, SG_ERR_NO_DEVICE);
SAME(cudaErrorInvalidResourceHandle, SG_ERR_INVALID_HANDLE);
SAME(cudaErrorNotReady, SG_ERR_NOT_READY);
SAME(cudaErrorIllegalAddress, SG_ERR_ILLEGAL_ADDRESS);
SAME(cudaErrorLaunchFailure, SG_ERR_LAUNCH_FAILURE);
SAME(cudaErrorNotPermitted, SG_ERR_NOT_PERMITTED);
SAME(cudaErrorStreamCaptureUnsupported, SG_ERR_CAPTURE_UNSUPPORTED);
SAME(cudaErrorStreamCaptureInvalidated, SG_ERR_CAPTURE_INVALIDATED);
SAME(cudaErrorStreamCaptureMerge, SG_ERR_CAPTURE_MERGE);
SAME(cudaErrorStreamCaptureUnmatched, SG_ERR_CAPTURE_UNMATCHED);
SAME(cudaErrorStreamCaptureUnjoined, SG_ERR_CAPTURE_UNJOINED);
SAME(cudaErrorStreamCaptureIsolation, SG_ERR_CAPTURE_ISOLATION);
SAME(cudaErrorStreamCaptureImplicit, SG_ERR_CAPTURE_IMPLICIT);
SAME(cudaErrorCapturedEvent, SG_ERR_CAPTURED_EVENT);
SAME(cudaErrorStreamCaptureWrongThread, SG_ERR_CAPTURE_WRONG_THREAD);
SAME(cudaErrorUnknown, SG_ERR_UNKNOWN);
SAME(cudaErrorPeerAccessAlreadyEnabled, 704);
SAME(cudaErrorPeerAccessNotEnabled, 705);
SAME(cudaErrorHostMemoryAlreadyRegistered, 712);
SAME(cudaErrorHostMemoryNotRegistered, 713);
SAME(cudaErrorGraphExecUpdateFailure, 910);

static __thread cudaError_t last;

cudaError_t rt_done(cudaError_t error)
{
    if (error != cudaSuccess) {
        last = error;
    }
    return error;
}

bool rt_stop(cudaError_t *out, sg_verdict verdict, int error, bool device)
{
    if (verdict == SG_FAIL) {
        *out = rt_done(error > 0 ? (cudaError_t)error : cudaErrorUnknown);
        return true;
    }
    if (verdict == SG_SKIP) {
        *out = cudaSuccess;
        return true;
    }
    if (device) {
        *out = rt_done((cudaError_t)sg_device_error(sg_current_device()));
        return *out != cudaSuccess;
    }
    return false;
}

sg_stream *rt_stream(cudaStream_t stream, const char *call, cudaError_t *error_out)
{
    sg_stream *s = sg_stream_get(stream, call);
    *error_out = s != NULL ? cudaSuccess : rt_done(cudaErrorInvalidResourceHandle);
    return s;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last;
    int device = sg_device_error(sg_current_device());
    last = cudaSuccess;
    return error == cudaSuccess && device != SG_ERR_NO_DEVICE ? (cudaError_t)device : error;
}

cudaError_t cudaPeekAtLastError(void)
{
    int device = sg_device_error(sg_current_device());
    return last == cudaSuccess && device != SG_ERR_NO_DEVICE ? (cudaError_t)device : last;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} table[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading", "driver shutting down"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorNvlinkUncorrectable, "cudaErrorNvlinkUncorrectable",
     "uncorrectable NVLink error detected during the execution"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled",
     "peer access has not been enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorTimeout, "cudaErrorTimeout", "wait operation timed out"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure",
     "the graph update was not performed because it included changes which violated constraints "
     "specific to instantiated graph update"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].error == error) {
            return table[i].name;
        }
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].error == error) {
            return table[i].text;
        }
    }
    return "unrecognized error code";
}
