package gateway

import (
	"fmt"
	"os"
	"time"

	"github.com/versity/versitygw/auth"
)

// Lifetimes of versitygw's cache of accounts, its own defaults.
const (
	accountTTL   = 2 * time.Minute
	accountPrune = time.Hour
)

// openIAM returns the accounts of o: root alone, or those of o.IAMDir too.
func openIAM(o Options) (auth.IAMService, error) {
	root := auth.Account{Access: o.AccessKey, Secret: o.SecretKey, Role: auth.RoleAdmin}
	if o.IAMDir == "" {
		return singleAccount{IAMService: auth.NewIAMServiceSingle(root), root: root}, nil
	}
	if err := os.MkdirAll(o.IAMDir, 0o700); err != nil {
		return nil, fmt.Errorf("directory for accounts: %w", err)
	}
	svc, err := auth.NewInternal(root, o.IAMDir)
	if err != nil {
		return nil, fmt.Errorf("directory for accounts %s: %w", o.IAMDir, err)
	}
	return auth.NewCache(svc, accountTTL, accountPrune), nil
}

// singleAccount is versitygw's single-account mode with S3's answer for an
// unknown access key: 403 InvalidAccessKeyId. versitygw's own is 404
// XAdminUserNotFound, which a client takes for a missing object.
type singleAccount struct {
	auth.IAMService
	root auth.Account
}

func (s singleAccount) GetUserAccount(access string) (auth.Account, error) {
	if access == s.root.Access {
		return s.root, nil
	}
	return auth.Account{}, auth.ErrNoSuchUser
}
