/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"

tutti_status tt_device_copy_now(tt_device *dev, void *dst, const void *src, size_t bytes)
{
    tutti_stream service = dev->ops->service(dev);
    TT_TRY(dev->ops->copy(dev, dst, src, bytes, service));
    return dev->ops->stream_sync(dev, service);
}
